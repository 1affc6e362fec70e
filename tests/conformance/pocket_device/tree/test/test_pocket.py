"""Tests of any device."""

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import TestCase


class TestAny(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_add(self, device, dtype):
        one = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(one.device.type, torch.device(device).type)
        self.assertEqual((one + one).cpu(), torch.full((3,), 2, dtype=dtype))

    def test_expected(self, device):
        self.assertEqual(torch.ones(2, device=device).cpu(), torch.zeros(2))

    @onlyCUDA
    def test_cuda(self, device):
        pass


instantiate_device_type_tests(TestAny, globals())
