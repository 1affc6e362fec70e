"""The one sentence that says what a pull request does."""

from __future__ import annotations

from collections.abc import Sequence

from hud.core.verdicts import Verdict, counted, too_on_cpu, worst


def sentence(verdicts: Sequence[Verdict], new_failures: int, uncertain: int, on_cpu: int = 0) -> tuple[Verdict, str]:
    """The verdict over all backends, and it in words.

    Args:
        verdicts: one per backend.
        new_failures: how many failing tests are this pull request's, over all backends.
        uncertain: how many failing tests nobody can attribute.
        on_cpu: how many of the new failures fail on the CPU too.
    """
    verdict = worst(verdicts)
    share = f"{verdicts.count(verdict)} of {counted(len(verdicts), 'backend')}"
    everywhere = verdicts.count(verdict) == len(verdicts)
    if verdict == "broken by this PR":
        what = f" – {counted(new_failures, 'new failing test')}" if new_failures else " – the job fails"
        return verdict, f"Broken by this PR on {share}{what}{too_on_cpu(on_cpu, new_failures)}"
    if verdict == "unclear":
        what = f" – {counted(uncertain, 'failing test')} that cannot be attributed" if uncertain else ""
        return verdict, f"Unclear on {share}{what}"
    if verdict == "not this PR's fault":
        return verdict, f"Not this PR's fault – what fails on {share} fails on the base too"
    if verdict == "flaky":
        return verdict, f"Flaky on {share} – tests failed and passed on this commit"
    if verdict == "infra":
        return verdict, f"Infrastructure trouble on {share} – no test is to blame"
    if verdict == "running":
        return verdict, f"Running on {share}"
    if verdict == "not reported":
        return verdict, f"Not reported by {share}" if verdicts else "No backend has reported yet"
    return verdict, f"Passed on {'every backend' if everywhere and len(verdicts) > 1 else share}"
