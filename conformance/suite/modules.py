"""Every module of module_db computes, on the device and with the same parameters, what it computes on the CPU."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type"
# Upstream's decorators and instantiation are untyped; these modules are read by them, not called by us.
import copy
import itertools

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_utils import TestCase, freeze_rng_state, run_tests

from conformance.suite.support import SAMPLES, label, to_device


class TestModules(TestCase):
    """Forward in float32, train and eval mode."""

    hw_classification = label("ACCELERATOR")

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_forward_matches_cpu(self, device, dtype, module_info, training):
        """``module.to(device)(inputs)`` equals ``module(inputs)``."""
        inputs = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=False, training=training
        )
        for example in itertools.islice((i for i in inputs if i.forward_input is not None), SAMPLES):
            made = example.constructor_input
            torch.manual_seed(0)
            reference = module_info.module_cls(*made.args, **made.kwargs).to(dtype)
            reference.train(training)
            moved = copy.deepcopy(reference).to(device)
            call = example.forward_input
            with freeze_rng_state():
                torch.manual_seed(0)
                expected = reference(*to_device(call.args, "cpu"), **to_device(call.kwargs, "cpu"))
            again = reference(*to_device(call.args, "cpu"), **to_device(call.kwargs, "cpu"))
            actual = moved(*to_device(call.args, device), **to_device(call.kwargs, device))
            if training and not _same(expected, again):
                continue  # Dropout and batch statistics: two calls differ on one device too.
            self.assertEqual(actual, expected, exact_device=False)


def _same(first, second):
    try:
        torch.testing.assert_close(first, second, equal_nan=True)
    except (AssertionError, TypeError):
        return False
    return True


instantiate_device_type_tests(TestModules, globals())

if __name__ == "__main__":
    run_tests()
