"""What a class has from another one: a limit to one device, a label that is none."""

from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import HardwareClassification, TestCase


class Limited:
    @onlyCUDA
    def test_a(self, device):
        pass


class TestLimited(Limited, TestCase):
    hw_classification = HardwareClassification.ACCELERATOR

    def test_b(self, device):
        pass


class Wrong(TestCase):
    hw_classification = "cpu"


class TestWrongToo(Wrong):
    def test_c(self):
        pass


class TestTwice(TestCase):
    def test_d(self, device):
        pass


instantiate_device_type_tests(TestLimited, globals())
instantiate_device_type_tests(TestTwice, globals(), only_for=("cuda", "cpu"))
