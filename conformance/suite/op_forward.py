"""Every operator of op_db computes on the device what it computes on the CPU."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type"
# Upstream's decorators and instantiation are untyped; these modules are read by them, not called by us.
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests

from conformance.suite.support import OPERATORS, call, is_random, label, samples, tensors


class TestOpForward(TestCase):
    """One dtype per operator; each sample is compared with the CPU's result."""

    hw_classification = label("ACCELERATOR")

    @ops(OPERATORS, dtypes=OpDTypes.any_one)
    def test_matches_cpu(self, device, dtype, op):
        """Values, dtypes and shapes equal the CPU's and the results lie on the device."""
        for sample in samples(op, dtype):
            expected, _ = call(op, sample, "cpu")
            actual, _ = call(op, sample, device)
            wanted, got = tensors(expected), tensors(actual)
            self.assertEqual(len(wanted), len(got))
            for result, reference in zip(got, wanted, strict=True):
                if "device" not in sample.kwargs:
                    self.assertEqual(result.device.type, device.split(":")[0])
                self.assertEqual(result.dtype, reference.dtype)
            if wanted and is_random(op, sample):
                for result, reference in zip(got, wanted, strict=True):
                    self.assertEqual(result.shape, reference.shape)
                continue
            self.assertEqual(actual, expected, exact_device=False)


instantiate_device_type_tests(TestOpForward, globals())

if __name__ == "__main__":
    run_tests()
