"""A label that is none: upstream's filter raises TypeError."""

from torch.testing._internal.common_utils import TestCase


class TestWrong(TestCase):
    hw_classification = "cpu"

    def test_a(self):
        pass
