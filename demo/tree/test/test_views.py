"""A view shares memory with its base on every device."""

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_dtype import all_types_and
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

_ACCELERATOR = getattr(getattr(common_utils, "HardwareClassification", None), "ACCELERATOR", None)


class TestViews(TestCase):
    hw_classification = _ACCELERATOR

    @dtypes(*all_types_and(torch.half, torch.bfloat16, torch.bool))
    def test_narrow_writes_through(self, device, dtype):
        base = torch.zeros(6, dtype=dtype, device=device)
        view = base.narrow(0, 2, 3)
        view.fill_(1)
        self.assertEqual(base.cpu().tolist(), [0, 0, 1, 1, 1, 0])

    @dtypes(*all_types_and(torch.half))
    @parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_permute(self, device, dtype, order):
        base = torch.testing.make_tensor((2, 3, 4), dtype=dtype, device=device)
        self.assertEqual(base.permute(order).cpu(), base.cpu().permute(order))

    def test_base(self, device):
        base = torch.ones(4, 4, device=device)
        self.assertIs(base[1:]._base, base)


instantiate_device_type_tests(TestViews, globals())

if __name__ == "__main__":
    run_tests()
