"""JSON objects as GitHub writes them, for webhooks and for the REST API.

Every webhook built here validates against GitHub's published schemas (npm ``@octokit/webhooks-schemas``).
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timezone
from typing import Any

from relay.emulator.git import ChangedFile, Commit
from relay.emulator.state import CheckRun, CheckSuite, Delivery, Pull, Repository, State, Token

Json = dict[str, Any]


def node_id(kind: str, number: int) -> str:
    """An opaque global id, stable per object."""
    return base64.b64encode(f"0{len(kind)}:{kind}{number}".encode()).decode()


def user(state: State, login: str, kind: str = "User", number: int | None = None) -> Json:
    """An account. The id of a login that has no repository here is made from its name."""
    if number is None:
        owners = {item.owner.lower(): item.owner_id for item in state.repositories.values()}
        stable = int.from_bytes(hashlib.sha256(login.lower().encode()).digest()[:4], "big")
        number = owners.get(login.lower(), stable)
    api = f"{state.base_url}/users/{login}"
    return {
        "login": login,
        "id": number,
        "node_id": node_id("User", number),
        "avatar_url": f"{state.base_url}/avatars/u/{number}?v=4",
        "gravatar_id": "",
        "url": api,
        "html_url": f"{state.base_url}/{login}",
        "followers_url": f"{api}/followers",
        "following_url": f"{api}/following{{/other_user}}",
        "gists_url": f"{api}/gists{{/gist_id}}",
        "starred_url": f"{api}/starred{{/owner}}{{/repo}}",
        "subscriptions_url": f"{api}/subscriptions",
        "organizations_url": f"{api}/orgs",
        "repos_url": f"{api}/repos",
        "events_url": f"{api}/events{{/privacy}}",
        "received_events_url": f"{api}/received_events",
        "type": kind,
        "site_admin": False,
    }


def bot(state: State) -> Json:
    """The App's own account, the sender of what the App does."""
    return user(state, f"{state.settings.app.slug}[bot]", "Bot")


def repository(state: State, item: Repository) -> Json:
    """The repository object of webhooks."""
    html = f"{state.base_url}/{item.full_name}"
    api = f"{state.base_url}/repos/{item.full_name}"
    templates = {
        "forks": "", "keys": "{/key_id}", "collaborators": "{/collaborator}", "teams": "", "hooks": "",
        "events": "", "assignees": "{/user}", "branches": "{/branch}", "tags": "", "languages": "",
        "stargazers": "", "contributors": "", "subscribers": "", "subscription": "", "commits": "{/sha}",
        "comments": "{/number}", "merges": "", "downloads": "", "issues": "{/number}", "pulls": "{/number}",
        "milestones": "{/number}", "labels": "{/name}", "releases": "{/id}", "deployments": "",
    }  # fmt: skip
    open_pulls = sum(pull.state == "open" for pull in item.pulls.values())
    return {
        "id": item.id,
        "node_id": node_id("Repository", item.id),
        "name": item.name,
        "full_name": item.full_name,
        "private": False,
        "owner": user(state, item.owner, "Organization", item.owner_id),
        "html_url": html,
        "description": None,
        "fork": False,
        "url": api,
        **{f"{name}_url": f"{api}/{name}{template}" for name, template in templates.items()},
        "issue_events_url": f"{api}/issues/events{{/number}}",
        "issue_comment_url": f"{api}/issues/comments{{/number}}",
        "blobs_url": f"{api}/git/blobs{{/sha}}",
        "git_tags_url": f"{api}/git/tags{{/sha}}",
        "git_refs_url": f"{api}/git/refs{{/sha}}",
        "trees_url": f"{api}/git/trees{{/sha}}",
        "statuses_url": f"{api}/statuses/{{sha}}",
        "git_commits_url": f"{api}/git/commits{{/sha}}",
        "contents_url": f"{api}/contents/{{+path}}",
        "compare_url": f"{api}/compare/{{base}}...{{head}}",
        "archive_url": f"{api}/{{archive_format}}{{/ref}}",
        "notifications_url": f"{api}/notifications{{?since,all,participating}}",
        "created_at": item.created_at,
        "updated_at": item.pushed_at,
        "pushed_at": item.pushed_at,
        "git_url": f"git://{state.base_url.partition('://')[2]}/{item.full_name}.git",
        "ssh_url": f"git@{state.base_url.partition('://')[2].partition(':')[0]}:{item.full_name}.git",
        "clone_url": f"{html}.git",
        "svn_url": html,
        "homepage": None,
        "size": 0,
        "stargazers_count": 0,
        "watchers_count": 0,
        "language": None,
        "has_issues": True,
        "has_projects": False,
        "has_downloads": True,
        "has_wiki": False,
        "has_pages": False,
        "has_discussions": False,
        "forks_count": 0,
        "mirror_url": None,
        "archived": False,
        "disabled": False,
        "open_issues_count": open_pulls,
        "license": None,
        "allow_forking": True,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "visibility": "public",
        "custom_properties": {},
        "forks": 0,
        "open_issues": open_pulls,
        "watchers": 0,
        "default_branch": item.default_branch,
    }


def label(state: State, item: Repository, name: str) -> Json:
    """A label of a repository."""
    number = int.from_bytes(hashlib.sha256(f"{item.full_name}/{name}".encode()).digest()[:4], "big")
    return {
        "id": number,
        "node_id": node_id("Label", number),
        "url": f"{state.base_url}/repos/{item.full_name}/labels/{name}",
        "name": name,
        "color": f"{number % 0x1000000:06x}",
        "default": False,
        "description": None,
    }


def pull_request(
    state: State, item: Repository, pull: Pull, files: list[ChangedFile], commits: int, merge_commit: str | None = None
) -> Json:
    """The pull request object, of webhooks and of ``GET /repos/…/pulls/{n}``."""
    api, html = f"{state.base_url}/repos/{item.full_name}", f"{state.base_url}/{item.full_name}"
    urls = {
        "self": f"{api}/pulls/{pull.number}",
        "html": f"{html}/pull/{pull.number}",
        "issue": f"{api}/issues/{pull.number}",
        "comments": f"{api}/issues/{pull.number}/comments",
        "review_comments": f"{api}/pulls/{pull.number}/comments",
        "review_comment": f"{api}/pulls/comments{{/number}}",
        "commits": f"{api}/pulls/{pull.number}/commits",
        "statuses": f"{api}/statuses/{pull.head_sha}",
    }
    repo = repository(state, item)
    owner = user(state, item.owner, "Organization", item.owner_id)
    return {
        "url": urls["self"],
        "id": pull.id,
        "node_id": node_id("PullRequest", pull.id),
        "html_url": urls["html"],
        "diff_url": f"{urls['html']}.diff",
        "patch_url": f"{urls['html']}.patch",
        "issue_url": urls["issue"],
        "number": pull.number,
        "state": pull.state,
        "locked": False,
        "title": pull.title,
        "user": user(state, pull.user),
        "body": pull.body,
        "created_at": pull.created_at,
        "updated_at": pull.updated_at,
        "closed_at": pull.closed_at,
        "merged_at": pull.closed_at if pull.merged else None,
        "merge_commit_sha": merge_commit,
        "assignee": None,
        "assignees": [],
        "requested_reviewers": [],
        "requested_teams": [],
        "labels": [label(state, item, name) for name in pull.labels],
        "milestone": None,
        "draft": pull.draft,
        **{
            f"{name}_url": urls[name]
            for name in ("commits", "review_comments", "review_comment", "comments", "statuses")
        },
        "head": {
            "label": f"{item.owner}:{pull.head_ref}",
            "ref": pull.head_ref,
            "sha": pull.head_sha,
            "user": owner,
            "repo": repo,
        },
        "base": {
            "label": f"{item.owner}:{pull.base_ref}",
            "ref": pull.base_ref,
            "sha": pull.base_sha,
            "user": owner,
            "repo": repo,
        },
        "_links": {name: {"href": url} for name, url in urls.items()},
        "author_association": "CONTRIBUTOR",
        "auto_merge": None,
        "active_lock_reason": None,
        "merged": pull.merged,
        "mergeable": None,
        "rebaseable": None,
        "mergeable_state": "unknown",
        "merged_by": owner if pull.merged else None,
        "comments": 0,
        "review_comments": 0,
        "maintainer_can_modify": False,
        "commits": commits,
        "additions": sum(file.additions for file in files),
        "deletions": sum(file.deletions for file in files),
        "changed_files": len(files),
    }


def changed_file(state: State, item: Repository, head: str, file: ChangedFile) -> Json:
    """One item of ``GET /repos/…/pulls/{n}/files``."""
    html = f"{state.base_url}/{item.full_name}"
    found: Json = {
        "sha": file.sha,
        "filename": file.filename,
        "status": file.status,
        "additions": file.additions,
        "deletions": file.deletions,
        "changes": file.additions + file.deletions,
        "blob_url": f"{html}/blob/{head}/{file.filename}",
        "raw_url": f"{html}/raw/{head}/{file.filename}",
        "contents_url": f"{state.base_url}/repos/{item.full_name}/contents/{file.filename}?ref={head}",
    }
    if file.patch is not None:
        found["patch"] = file.patch
    if file.previous_filename is not None:
        found["previous_filename"] = file.previous_filename
    return found


def envelope(state: State, item: Repository, sender: Json) -> Json:
    """What every webhook of an App carries beside its event."""
    return {
        "repository": repository(state, item),
        "sender": sender,
        "installation": installation_lite(state, item.owner),
    }


def installation_lite(state: State, owner: str) -> Json:
    """The installation as webhooks name it."""
    number = state.installations.get(owner.lower(), 0)
    return {"id": number, "node_id": node_id("IntegrationInstallation", number)}


def pull_request_event(state: State, item: Repository, action: str, pull: Json, **extra: Any) -> Json:
    """``pull_request``; ``extra`` is ``before``/``after`` of synchronize, ``label`` of labeled and unlabeled."""
    return {
        "action": action,
        "number": pull["number"],
        "pull_request": pull,
        **extra,
        **envelope(state, item, pull["user"]),
    }


def commit(state: State, item: Repository, found: Commit, files: list[ChangedFile]) -> Json:
    """One commit of a push."""

    def names(*states: str) -> list[str]:
        return [file.filename for file in files if file.status in states]

    return {
        "id": found.sha,
        "tree_id": found.tree,
        "distinct": True,
        "message": found.message,
        "timestamp": found.timestamp,
        "url": f"{state.base_url}/{item.full_name}/commit/{found.sha}",
        "author": {"name": found.author_name, "email": found.author_email},
        "committer": {"name": found.committer_name, "email": found.committer_email},
        "added": names("added", "copied"),
        "removed": names("removed"),
        "modified": names("modified", "renamed", "changed"),
    }


def push_event(
    state: State, item: Repository, ref: str, before: str, after: str, commits: list[Json], forced: bool, pusher: str
) -> Json:
    """``push``. ``commits`` are oldest first; a deleted ref has ``after`` = the null SHA and none."""
    held = envelope(state, item, user(state, pusher))
    seconds = int(datetime.fromisoformat(item.created_at.replace("Z", "+00:00")).timestamp())
    pushed = int(datetime.fromisoformat(item.pushed_at.replace("Z", "+00:00")).timestamp())
    owner = {"name": item.owner, "email": f"{item.owner}@users.noreply.invalid", **held["repository"]["owner"]}
    created, deleted = not before.strip("0"), not after.strip("0")
    html = f"{state.base_url}/{item.full_name}"
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "created": created,
        "deleted": deleted,
        "forced": forced,
        "base_ref": None,
        "compare": f"{html}/commit/{after[:12]}" if created else f"{html}/compare/{before[:12]}...{after[:12]}",
        "commits": commits,
        "head_commit": commits[-1] if commits else None,
        "pusher": {"name": pusher, "email": f"{pusher}@users.noreply.invalid"},
        **held,
        # Push is the oldest event: its repository has times as numbers, and fields that no other event has.
        "repository": {
            **held["repository"],
            "owner": owner,
            "url": html,
            "created_at": seconds,
            "pushed_at": pushed,
            "stargazers": 0,
            "master_branch": item.default_branch,
        },
    }


def app(state: State) -> Json:
    """The GitHub App."""
    settings = state.settings.app
    return {
        "id": settings.id,
        "slug": settings.slug,
        "node_id": node_id("App", settings.id),
        "owner": user(state, state.upstream.owner, "Organization", state.upstream.owner_id),
        "name": settings.slug,
        "description": "",
        "external_url": state.base_url,
        "html_url": f"{state.base_url}/apps/{settings.slug}",
        "created_at": state.upstream.created_at,
        "updated_at": state.upstream.created_at,
        "permissions": settings.permissions,
        "events": settings.events,
    }


def installation(state: State, owner: str) -> Json:
    """An installation as the REST API shows it."""
    number = state.installations[owner.lower()]
    owned = next(item for item in state.repositories.values() if item.owner.lower() == owner.lower())
    api = f"{state.base_url}/app/installations/{number}"
    return {
        "id": number,
        "account": user(state, owned.owner, "Organization", owned.owner_id),
        "access_tokens_url": f"{api}/access_tokens",
        "repositories_url": f"{state.base_url}/installation/repositories",
        "html_url": f"{state.base_url}/organizations/{owned.owner}/settings/installations/{number}",
        "app_id": state.settings.app.id,
        "app_slug": state.settings.app.slug,
        "target_id": owned.owner_id,
        "target_type": "Organization",
        "permissions": state.settings.app.permissions,
        "events": state.settings.app.events,
        "created_at": owned.created_at,
        "updated_at": owned.created_at,
        "single_file_name": None,
        "has_multiple_single_files": False,
        "single_file_paths": [],
        "repository_selection": "selected",
        "suspended_by": None,
        "suspended_at": None,
    }


def access_token(state: State, value: str, token: Token) -> Json:
    """Answer of ``POST /app/installations/{id}/access_tokens``."""
    expires = datetime.fromtimestamp(token.expires, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    held: Json = {
        "token": value,
        "expires_at": expires,
        "permissions": token.permissions,
        "repository_selection": "all" if token.repositories is None else "selected",
    }
    if token.repositories is not None:
        held["repositories"] = [repository(state, state.repositories[name]) for name in sorted(token.repositories)]
    return held


def _short_pulls(state: State, item: Repository, sha: str) -> list[Json]:
    ref = {"id": item.id, "url": f"{state.base_url}/repos/{item.full_name}", "name": item.name}
    return [
        {
            "url": f"{state.base_url}/repos/{item.full_name}/pulls/{pull.number}",
            "id": pull.id,
            "number": pull.number,
            "head": {"ref": pull.head_ref, "sha": pull.head_sha, "repo": ref},
            "base": {"ref": pull.base_ref, "sha": pull.base_sha, "repo": ref},
        }
        for pull in item.pulls.values()
        if pull.head_sha == sha and pull.state == "open"
    ]


def suite_status(item: Repository, suite: CheckSuite) -> tuple[str, str | None]:
    """Status and conclusion of a suite, from its check runs."""
    checks = [check for check in item.checks.values() if check.suite_id == suite.id]
    if not checks:
        return "queued", None
    if any(check.status != "completed" for check in checks):
        return "in_progress" if any(check.status != "queued" for check in checks) else "queued", None
    found = {check.conclusion for check in checks}
    for conclusion in ("failure", "timed_out", "cancelled", "action_required", "stale", "success"):
        if conclusion in found:
            return "completed", conclusion
    return "completed", "neutral"


def check_suite(state: State, item: Repository, suite: CheckSuite, commit_: Commit | None = None) -> Json:
    """A check suite; with ``commit_`` as the ``check_suite`` webhook and the REST API show it."""
    api = f"{state.base_url}/repos/{item.full_name}/check-suites/{suite.id}"
    status, conclusion = suite_status(item, suite)
    held: Json = {
        "id": suite.id,
        "node_id": node_id("CheckSuite", suite.id),
        "head_branch": suite.head_branch,
        "head_sha": suite.head_sha,
        "status": status,
        "conclusion": conclusion,
        "url": api,
        "before": suite.before,
        "after": suite.after,
        "pull_requests": _short_pulls(state, item, suite.head_sha),
        "app": app(state),
        "created_at": suite.created_at,
        "updated_at": suite.updated_at,
    }
    if commit_ is not None:
        held |= {
            "rerequestable": True,
            "runs_rerequestable": True,
            "latest_check_runs_count": sum(check.suite_id == suite.id for check in item.checks.values()),
            "check_runs_url": f"{api}/check-runs",
            "head_commit": {
                "id": commit_.sha,
                "tree_id": commit_.tree,
                "message": commit_.message,
                "timestamp": commit_.timestamp,
                "author": {"name": commit_.author_name, "email": commit_.author_email},
                "committer": {"name": commit_.committer_name, "email": commit_.committer_email},
            },
        }
    return held


def check_run(state: State, item: Repository, check: CheckRun, webhook: bool = False) -> Json:
    """A check run. In a webhook the whole suite is inside, in the REST API only its id."""
    api = f"{state.base_url}/repos/{item.full_name}/check-runs/{check.id}"
    html = f"{state.base_url}/{item.full_name}/runs/{check.id}"
    suite = item.suites[check.suite_id]
    return {
        "id": check.id,
        "node_id": node_id("CheckRun", check.id),
        "head_sha": check.head_sha,
        "external_id": check.external_id,
        "url": api,
        "html_url": html,
        "details_url": check.details_url or html,
        "status": check.status,
        "conclusion": check.conclusion,
        "started_at": check.started_at,
        "completed_at": check.completed_at,
        "output": {
            "title": check.output.get("title"),
            "summary": check.output.get("summary"),
            "text": check.output.get("text"),
            "annotations_count": len(check.output.get("annotations") or []),
            "annotations_url": f"{api}/annotations",
        },
        "name": check.name,
        "check_suite": check_suite(state, item, suite) if webhook else {"id": suite.id},
        "app": app(state),
        "pull_requests": _short_pulls(state, item, check.head_sha),
    }


def check_run_event(state: State, item: Repository, action: str, check: CheckRun, sender: Json) -> Json:
    """``check_run``."""
    return {"action": action, "check_run": check_run(state, item, check, webhook=True), **envelope(state, item, sender)}


def check_suite_event(
    state: State, item: Repository, action: str, suite: CheckSuite, commit_: Commit, sender: Json
) -> Json:
    """``check_suite``."""
    shown = check_suite(state, item, suite, commit_)
    if action != "requested":
        del shown["rerequestable"], shown["runs_rerequestable"]
    return {"action": action, "check_suite": shown, **envelope(state, item, sender)}


def dispatch_event(state: State, item: Repository, event_type: str, client_payload: Json) -> Json:
    """``repository_dispatch``: what a workflow finds at ``GITHUB_EVENT_PATH``."""
    return {
        "action": event_type,
        "branch": item.default_branch,
        "client_payload": client_payload,
        **envelope(state, item, bot(state)),
    }


def delivery(item: Delivery, full: bool = False) -> Json:
    """A webhook delivery as ``GET /app/hook/deliveries`` shows it; ``full`` adds request and response."""
    held: Json = {
        "id": item.id,
        "guid": item.guid,
        "delivered_at": item.delivered_at,
        "redelivery": item.redelivery,
        "duration": item.duration,
        "status": item.status,
        "status_code": item.status_code,
        "event": item.event,
        "action": item.action,
        "installation_id": item.payload.get("installation", {}).get("id"),
        "repository_id": item.repository_id,
    }
    if full:
        held |= {
            "request": {"headers": item.request_headers, "payload": item.payload},
            "response": {"headers": item.response_headers, "payload": item.response_body},
        }
    return held
