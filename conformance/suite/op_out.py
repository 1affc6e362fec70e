"""``out=`` variants write the functional result into the given tensor on the device."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type"
# Upstream's decorators and instantiation are untyped; these modules are read by them, not called by us.
import torch
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests

from conformance.suite.support import OPERATORS, call, is_random, label, samples, tensors


class TestOpOut(TestCase):
    """Operators that op_db says take ``out=``."""

    hw_classification = label("ACCELERATOR")

    @ops([op for op in OPERATORS if op.supports_out], dtypes=OpDTypes.any_one)
    def test_out_matches_functional(self, device, dtype, op):
        """A preallocated and an empty ``out=`` tensor both receive the result and are what the call returns."""
        for sample in samples(op, dtype):
            expected, _ = call(op, sample, device)
            if not isinstance(expected, torch.Tensor) or expected.layout is not torch.strided:
                continue  # Upstream defines resizing of out= for one strided tensor.
            if is_random(op, sample) or "generator" in sample.kwargs:
                continue
            for shape in (expected.shape, (0,)):
                target = torch.empty(shape, dtype=expected.dtype, device=device)
                result, _ = call(op, sample, device, out=target)
                self.assertIs(result, target)
                self.assertEqual(tensors(target), tensors(expected))


instantiate_device_type_tests(TestOpOut, globals())

if __name__ == "__main__":
    run_tests()
