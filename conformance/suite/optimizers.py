"""Optimizers of optim_db take the same steps on the device as on the CPU."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type"
# Upstream's decorators and instantiation are untyped; these modules are read by them, not called by us.
import itertools

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase, run_tests

from conformance.suite.support import SAMPLES, label


class TestOptimizers(TestCase):
    """Three steps on a small linear problem in float32."""

    hw_classification = label("ACCELERATOR")

    @optims(optim_db, dtypes=[torch.float32])
    def test_steps_match_cpu(self, device, dtype, optim_info):
        """Parameters after three steps."""
        for example in itertools.islice(optim_info.optim_inputs_func(device="cpu"), SAMPLES):
            results = []
            for where in ("cpu", device):
                generator = torch.Generator().manual_seed(0)
                weight = torch.randn(4, 3, generator=generator, dtype=dtype).to(where).requires_grad_()
                features = torch.randn(5, 4, generator=generator, dtype=dtype).to(where)
                if optim_info.only_supports_sparse_grads:
                    self.skipTest("optim_db: only sparse gradients")
                optimizer = optim_info.optim_cls([weight], **example.kwargs)

                def closure(optimizer=optimizer, weight=weight, features=features):
                    optimizer.zero_grad()
                    loss = (features @ weight).square().mean()
                    loss.backward()
                    return loss

                for _ in range(3):
                    if optim_info.step_requires_closure:
                        optimizer.step(closure)
                    else:
                        closure()
                        optimizer.step()
                results.append(weight.detach().cpu())
            self.assertEqual(results[1], results[0])


instantiate_device_type_tests(TestOptimizers, globals())

if __name__ == "__main__":
    run_tests()
