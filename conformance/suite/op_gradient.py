"""Gradients on the device equal the CPU's."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type"
# Upstream's decorators and instantiation are untyped; these modules are read by them, not called by us.
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase, run_tests

from conformance.suite.support import OPERATORS, call, is_random, label, samples, tensors

_DTYPE = torch.float32


class TestOpGradient(TestCase):
    """Operators that op_db says support autograd, in float32."""

    hw_classification = label("ACCELERATOR")

    @ops([op for op in OPERATORS if op.supports_autograd], dtypes=(_DTYPE,))
    def test_gradient_matches_cpu(self, device, dtype, op):
        """The gradient of the sum of all float results, with respect to every input that wants one."""
        if dtype not in op.supported_backward_dtypes("cpu"):
            self.skipTest(f"op_db: no backward for {dtype} on CPU")
        for sample in samples(op, dtype, requires_grad=True):
            if is_random(op, sample):
                continue
            gradients = []
            for where in ("cpu", device):
                result, leaves = call(op, sample, where)
                outputs = [t for t in tensors(sample.output_process_fn_grad(result)) if t.requires_grad]
                if not outputs or not leaves:
                    break
                total = sum((t.abs() if t.is_complex() else t).sum() for t in outputs)
                gradients.append(torch.autograd.grad(total, leaves, allow_unused=True))
            if len(gradients) == 2:
                self.assertEqual(gradients[1], gradients[0], exact_device=False)


instantiate_device_type_tests(TestOpGradient, globals())

if __name__ == "__main__":
    run_tests()
