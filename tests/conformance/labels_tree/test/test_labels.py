"""Every case of classification, for upstream's own filter and ours."""

import unittest

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import (
    HardwareClassification,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
)


class TestGeneric(TestCase):
    hw_classification = HardwareClassification.GENERIC

    def test_a(self):
        pass


class TestInherited(TestGeneric):
    def test_b(self):
        pass


class TestOverridden(TestGeneric):
    hw_classification = HardwareClassification.CPU

    def test_c(self):
        pass


class TestTakenBack(TestGeneric):
    hw_classification = None

    def test_d(self):
        pass


class TestPlain(unittest.TestCase):
    def test_e(self):
        pass


class TestDevice(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR

    def test_f(self, device):
        pass

    @parametrize("x", [1, 2])
    def test_g(self, device, x):
        pass


class TestParametrized(TestCase):
    hw_classification = HardwareClassification.GENERIC

    @parametrize("x", [1, 2])
    def test_h(self, x):
        pass


class LabelledMixin:
    hw_classification = HardwareClassification.CUDA

    def test_i(self):
        pass


class TestMixed(LabelledMixin, TestCase):
    pass


def _generate(name, label):
    return type(name, (TestCase,), {"hw_classification": label, "test_j": lambda self: None, "__module__": __name__})


TestMade = _generate("TestMade", HardwareClassification.ACCELERATOR)


class TestUninstantiated(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR

    def test_k(self):
        pass


class TestCudaOnly(TestCase):
    hw_classification = HardwareClassification.ACCELERATOR

    def test_l(self, device):
        pass


class TestNotOnCpu(TestCase):
    def test_m(self, device):
        pass


class TestHolder(TestCase):
    hw_classification = HardwareClassification.GENERIC

    class TestInner(TestCase):
        hw_classification = HardwareClassification.GENERIC

        def test_nested(self):
            pass

    def test_n(self):
        pass


class TestDiamond(TestInherited, TestOverridden):
    def test_o(self):
        pass


def test_function():
    pass


instantiate_device_type_tests(TestDevice, globals(), only_for="cpu")
instantiate_device_type_tests(TestCudaOnly, globals(), only_for="cuda")
instantiate_device_type_tests(TestNotOnCpu, globals(), except_for=("cpu", "meta"))
instantiate_parametrized_tests(TestParametrized)
