"""What happens on GitHub when somebody pushes or touches a pull request: changes of state, and their webhooks."""

from __future__ import annotations

from typing import Any

from relay.emulator import git, payloads
from relay.emulator.state import NULL_SHA, CheckRun, CheckSuite, Delivery, Pull, Repository, State, now
from relay.emulator.webhooks import Webhooks

MAX_PUSH_COMMITS = 2048
"""GitHub lists no more commits in one push."""


class EventError(Exception):
    """The event cannot happen; the text says why."""


class Events:
    """The acts of people on repositories."""

    def __init__(self, state: State, webhooks: Webhooks) -> None:
        self._state = state
        self._webhooks = webhooks

    # -- push

    async def push(
        self, repository: Repository, ref: str, pusher: str, delete: bool = False
    ) -> tuple[str, Delivery | None]:
        """Take a ref from the author's clone and announce it.

        Where the server has that commit at that ref already, the last commit is announced again.

        Returns:
            The commit that ``ref`` now names, and the ``push`` delivery.

        Raises:
            EventError: the clone has no such ref, or the repository has no git data.
        """
        directory = self._git(repository)
        try:
            full = git.full_ref(ref)
            before = await git.resolve(directory, full)
            if delete:
                if before is None:
                    raise EventError(f"{repository.full_name} has no {full} to delete")
                await git.git(directory, "update-ref", "-d", full)
                after = NULL_SHA
            else:
                await self._receive(repository, full)
                after = await git.resolve(directory, full) or NULL_SHA
        except git.GitError as error:
            raise EventError(str(error)) from error
        if before == after:
            parents = (await git.commits(directory, after, limit=1))[0].parents
            before = parents[0] if parents else None
        repository.pushed_at = now()
        found, forced = [], False
        if not delete:
            known = before and await git.merge_base(directory, before, after)
            forced = bool(before) and known != before
            for commit in reversed(await git.commits(directory, after, known, MAX_PUSH_COMMITS if known else 1)):
                found.append(payloads.commit(self._state, repository, commit, await self._files_of(directory, commit)))
        payload = payloads.push_event(self._state, repository, full, before or NULL_SHA, after, found, forced, pusher)
        delivery = self._webhooks.send(repository, "push", payload)
        if not delete and full.startswith("refs/heads/"):
            branch = full.removeprefix("refs/heads/")
            await self._suite_requested(repository, after, branch, before, pusher)
        return after, delivery

    async def _files_of(self, directory: Any, commit: git.Commit) -> list[git.ChangedFile]:
        # The root commit of a large tree would make a payload that GitHub cuts, too.
        return await git.changed_files(directory, commit.parents[0], commit.sha, False) if commit.parents else []

    def _git(self, repository: Repository) -> Any:
        if repository.git is None:
            raise EventError(f"repository {repository.full_name} has no git data: its settings have no 'path'")
        return repository.git

    async def _receive(self, repository: Repository, ref: str) -> None:
        assert repository.git is not None and repository.settings.path is not None
        await git.receive(repository.settings.path, repository.git, ref)

    async def _suite_requested(
        self, repository: Repository, sha: str, branch: str | None, before: str | None, sender: str
    ) -> None:
        suite = self.suite(repository, sha, branch, before)
        commit = await self.commit(repository, sha)
        self._webhooks.send(
            repository,
            "check_suite",
            payloads.check_suite_event(
                self._state, repository, "requested", suite, commit, payloads.user(self._state, sender)
            ),
        )

    async def commit(self, repository: Repository, sha: str) -> git.Commit:
        """A commit, or an empty one where the repository has no git data."""
        if repository.git is not None:
            try:
                return (await git.commits(repository.git, sha, limit=1))[0]
            except (git.GitError, IndexError):
                pass
        return git.Commit(sha, NULL_SHA, (), "", now(), "unknown", "", "unknown", "")

    # -- pull requests

    async def open_pull(
        self,
        repository: Repository,
        head_ref: str,
        base_ref: str,
        title: str,
        labels: list[str],
        user: str,
        body: str | None = None,
        draft: bool = False,
    ) -> tuple[Pull, Delivery | None]:
        """Open a pull request from a branch of the author's clone.

        Raises:
            EventError: a branch is missing, or head and base have no difference.
        """
        directory = self._git(repository)
        try:
            for ref in (head_ref, base_ref):
                await self._receive(repository, git.full_ref(ref))
            head = await git.resolve(directory, git.full_ref(head_ref))
            base = await git.resolve(directory, git.full_ref(base_ref))
        except git.GitError as error:
            raise EventError(str(error)) from error
        assert head is not None and base is not None
        if not await git.commits(directory, head, base, 1):
            raise EventError(f"No commits between {base_ref} and {head_ref}")
        number = max(repository.pulls, default=0) + 1
        pull = Pull(
            self._state.new_id(), number, title, body, user, head_ref, head, base_ref, base, list(labels), draft
        )
        await git.create_ref(directory, f"refs/pull/{number}/head", head)
        repository.pulls[number] = pull
        delivery = await self._announce(repository, pull, "opened")
        await self._suite_requested(repository, head, head_ref, None, user)
        return pull, delivery

    async def synchronize(self, repository: Repository, pull: Pull) -> Delivery | None:
        """The author pushed to the head branch.

        Raises:
            EventError: the pull request is closed, or the branch is gone.
        """
        if pull.state != "open":
            raise EventError(f"pull request {pull.number} is closed")
        directory = self._git(repository)
        before = pull.head_sha
        try:
            for ref in (pull.head_ref, pull.base_ref):
                await self._receive(repository, git.full_ref(ref))
        except git.GitError as error:
            raise EventError(str(error)) from error
        pull.head_sha = await git.resolve(directory, git.full_ref(pull.head_ref)) or before
        pull.base_sha = await git.resolve(directory, git.full_ref(pull.base_ref)) or pull.base_sha
        pull.updated_at = now()
        await git.create_ref(directory, f"refs/pull/{pull.number}/head", pull.head_sha)
        delivery = await self._announce(repository, pull, "synchronize", before=before, after=pull.head_sha)
        await self._suite_requested(repository, pull.head_sha, pull.head_ref, before, pull.user)
        return delivery

    async def close(self, repository: Repository, pull: Pull, merged: bool = False) -> Delivery | None:
        """Close a pull request, as merged or not."""
        if pull.state != "open":
            raise EventError(f"pull request {pull.number} is closed already")
        pull.state, pull.merged, pull.closed_at, pull.updated_at = "closed", merged, now(), now()
        return await self._announce(repository, pull, "closed")

    async def reopen(self, repository: Repository, pull: Pull) -> Delivery | None:
        """Open a closed pull request again."""
        if pull.state != "closed" or pull.merged:
            raise EventError(f"pull request {pull.number} is {'merged' if pull.merged else 'open'}")
        pull.state, pull.closed_at, pull.updated_at = "open", None, now()
        return await self._announce(repository, pull, "reopened")

    async def label(self, repository: Repository, pull: Pull, name: str) -> Delivery | None:
        """Add a label; no event if it is there."""
        if name in pull.labels:
            return None
        pull.labels.append(name)
        return await self._announce(repository, pull, "labeled", label=payloads.label(self._state, repository, name))

    async def unlabel(self, repository: Repository, pull: Pull, name: str) -> Delivery | None:
        """Remove a label; no event if it is not there."""
        if name not in pull.labels:
            return None
        pull.labels.remove(name)
        return await self._announce(repository, pull, "unlabeled", label=payloads.label(self._state, repository, name))

    async def pull_object(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        """The pull request as JSON, with its counts from git."""
        files, count = await self.pull_files(repository, pull, patches=False), 0
        if repository.git is not None:
            count = len(await git.commits(repository.git, pull.head_sha, pull.base_sha, 250))
        merge = pull.head_sha if pull.merged else None
        return payloads.pull_request(self._state, repository, pull, files, count, merge)

    async def pull_files(self, repository: Repository, pull: Pull, patches: bool = True) -> list[git.ChangedFile]:
        """What the pull request changes: from the merge base, as GitHub compares."""
        if repository.git is None:
            return []
        base = await git.merge_base(repository.git, pull.base_sha, pull.head_sha) or pull.base_sha
        return await git.changed_files(repository.git, base, pull.head_sha, patches)

    async def _announce(self, repository: Repository, pull: Pull, action: str, **extra: Any) -> Delivery | None:
        found = await self.pull_object(repository, pull)
        payload = payloads.pull_request_event(self._state, repository, action, found, **extra)
        return self._webhooks.send(repository, "pull_request", payload)

    # -- checks

    def suite(
        self, repository: Repository, sha: str, branch: str | None = None, before: str | None = None
    ) -> CheckSuite:
        """The App's suite on a commit; made if it is the first."""
        for suite in repository.suites.values():
            if suite.head_sha == sha:
                return suite
        branch = branch or next((item.head_ref for item in repository.pulls.values() if item.head_sha == sha), None)
        suite = CheckSuite(self._state.new_id(), sha, branch, before, sha)
        repository.suites[suite.id] = suite
        return suite

    def check_changed(self, repository: Repository, check: CheckRun, action: str) -> None:
        """Announce a check run that the App made or completed."""
        repository.suites[check.suite_id].updated_at = now()
        payload = payloads.check_run_event(self._state, repository, action, check, payloads.bot(self._state))
        self._webhooks.send(repository, "check_run", payload)

    def rerequest_check(self, repository: Repository, check: CheckRun, sender: str) -> Delivery | None:
        """Somebody pressed "Re-run" on a check run. GitHub offers it on completed ones only.

        Raises:
            EventError: the check run, or another of its suite, is not completed.
        """
        suite = repository.suites[check.suite_id]
        if check.status != "completed":
            raise EventError(f"check run {check.id} is {check.status}; only a completed one can be re-run")
        payload = payloads.check_run_event(
            self._state, repository, "rerequested", check, payloads.user(self._state, sender)
        )
        # The event describes the suite as it was when the button was there: completed.
        shown = payload["check_run"]["check_suite"]
        if shown["status"] != "completed":
            shown |= {"status": "completed", "conclusion": check.conclusion}
        suite.updated_at = now()
        return self._webhooks.send(repository, "check_run", payload)

    async def rerequest_suite(self, repository: Repository, suite: CheckSuite, sender: str) -> Delivery | None:
        """Somebody pressed "Re-run all checks".

        Raises:
            EventError: the suite is not completed.
        """
        status, _ = payloads.suite_status(repository, suite)
        if status != "completed":
            raise EventError(f"check suite {suite.id} is {status}; only a completed one can be re-run")
        commit = await self.commit(repository, suite.head_sha)
        payload = payloads.check_suite_event(
            self._state, repository, "rerequested", suite, commit, payloads.user(self._state, sender)
        )
        return self._webhooks.send(repository, "check_suite", payload)
