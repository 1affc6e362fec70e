"""Elementwise arithmetic is the same on every device."""

import operator

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_dtype import all_types_and
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

_ACCELERATOR = getattr(getattr(common_utils, "HardwareClassification", None), "ACCELERATOR", None)


class TestElementwise(TestCase):
    hw_classification = _ACCELERATOR

    @dtypes(*all_types_and(torch.half, torch.bfloat16))
    @parametrize("name", ["add", "sub", "mul"])
    @parametrize("shape", [(), (0,), (5,), (3, 4), (2, 1, 3)])
    def test_arithmetic(self, device, dtype, name, shape):
        function = getattr(operator, name)
        left = torch.testing.make_tensor(shape, dtype=dtype, device=device, low=1, high=5)
        right = torch.testing.make_tensor(shape, dtype=dtype, device=device, low=1, high=5)
        self.assertEqual(function(left, right).cpu(), function(left.cpu(), right.cpu()))

    @dtypes(torch.float32, torch.float64, torch.half, torch.bfloat16)
    @parametrize("name", ["sin", "cos", "exp", "sqrt", "tanh", "sigmoid", "abs", "neg"])
    def test_unary(self, device, dtype, name):
        values = torch.testing.make_tensor((7, 5), dtype=dtype, device=device, low=0.5, high=2)
        function = getattr(torch, name)
        self.assertEqual(function(values).cpu(), function(values.cpu()))

    def test_broadcast(self, device):
        column = torch.arange(4.0, device=device).reshape(4, 1)
        row = torch.arange(3.0, device=device)
        self.assertEqual((column + row).shape, torch.Size([4, 3]))


instantiate_device_type_tests(TestElementwise, globals())

if __name__ == "__main__":
    run_tests()
