"""Snapshots, forks and roll back with our Python SDK, on a real engine."""

import asyncio
import os
import subprocess

import pytest
from which_sdk import OURS

if not OURS:
    pytest.skip("the published SDK has no snapshots of files", allow_module_level=True)
if os.geteuid() != 0:
    pytest.skip("without root only some machines can take snapshots", allow_module_level=True)

from agent_sandbox import AsyncClient, Client, Sandbox, Snapshot, errors  # noqa: E402


@pytest.fixture
def client(engine):
    return Client(kubeconfig=str(engine.kubeconfig))


def contents(sandbox):
    return sandbox.run("cat state").stdout


def await_deletion(engine, *objects):
    ended = engine.kubectl("wait", "--for=delete", "--timeout=60s", *objects)
    assert ended.returncode == 0, ended.stderr


def test_a_sandbox_is_set_back_to_a_snapshot_and_others_are_made_from_it(engine, client):
    with client.sandbox("host") as sandbox:
        sandbox.run("echo good > state").check()
        taken = sandbox.snapshot("py-good", labels={"purpose": "test"}, expires_after=3600)
        assert (str(taken), taken.sandbox, taken.ready, taken.labels) == ("py-good", sandbox.name, True, {"purpose": "test"})
        assert taken.size_bytes > 0 and taken.frozen_ms is not None and taken.taken_at and taken.expires_at
        with pytest.raises(errors.SandboxAlreadyExistsError, match="py-good"):
            sandbox.snapshot("py-good")
        sandbox.run("echo bad > state").check()
        name = sandbox.name
        sandbox.rollback(taken)
        assert (contents(sandbox), sandbox.name) == ("good\n", name)
        again = sandbox.snapshot()
        assert again.name.startswith(f"{name}-") and again.parent == "py-good" and again.expires_at is None
        assert [one.name for one in client.snapshots() if one.sandbox == name] == ["py-good", again.name]
        client.delete_snapshot(again)

        sandbox.suspend()
        sandbox.rollback("py-good")
        assert sandbox.status()[0] is False, "it stays suspended"
        sandbox.resume()
        assert contents(sandbox) == "good\n"
    with client.sandbox(snapshot=taken, labels={"who": "test"}, expires_after=600) as other:
        assert contents(other) == "good\n", "a snapshot outlives its sandbox"
        client.delete_snapshot("py-good")
        assert contents(other) == "good\n", "a sandbox outlives its snapshot"
    await_deletion(engine, "sandboxsnapshot/py-good")
    with pytest.raises(errors.SnapshotNotFoundError, match="py-good"):
        client.delete_snapshot("py-good")


def test_forks_have_the_files_and_are_independent(engine, client):
    # From a pool: the snapshot is one of the claim's Sandbox.
    with client.sandbox() as sandbox:
        sandbox.run("echo shared > state").check()
        before = {one.name for one in client.snapshots()}
        first, second = sandbox.fork(2, labels={"who": "fork"}, expires_after=600)
        with first, second:
            assert len({sandbox.name, first.name, second.name}) == 3
            assert {contents(one) for one in (sandbox, first, second)} == {"shared\n"}
            first.run("echo first > state").check()
            sandbox.run("echo origin > state").check()
            assert [contents(one) for one in (sandbox, first, second)] == ["origin\n", "first\n", "shared\n"]
            found = engine.kubectl("get", "sandboxes", "-l", "who=fork", "-o", "jsonpath={.items[*].spec.shutdownPolicy}")
            assert found.stdout == "Delete Delete", found.stderr
            left = [f"sandboxsnapshot/{one.name}" for one in client.snapshots() if one.name not in before]
            if left:
                await_deletion(engine, *left)
            names = [f"sandbox/{one.name}" for one in (first, second)]
        await_deletion(engine, *names)


NEVER_STARTED = """
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: py-never-started, namespace: default}
spec:
  operatingMode: Suspended
  podTemplate: {spec: {containers: [{name: sandbox, image: host}]}}
"""


def test_what_is_not_possible_is_an_error_that_says_why(engine, client):
    applied = engine.kubectl("apply", "-f", "-", input=NEVER_STARTED)
    assert applied.returncode == 0, applied.stderr
    never_started = client.get("py-never-started")
    for action in (never_started.snapshot, never_started.fork):
        with pytest.raises(errors.SandboxTimeoutError, match="never been started"):
            action(timeout=0.3)
    never_started.delete()
    assert isinstance(errors.from_native("snapshot_failed", "x", None, None), errors.SnapshotFailedError)
    with client.sandbox("host") as sandbox:
        for action in (lambda: sandbox.rollback("no-such"), lambda: client.sandbox(snapshot="no-such").open()):
            with pytest.raises(errors.SnapshotNotFoundError, match="snapshot `no-such` not found in namespace `default`"):
                action()
        with client.sandbox("host", memory="300Mi") as other:
            other_state = other.snapshot()
            # The Sandbox has another Pod template.
            with pytest.raises(ValueError, match="another Pod template"):
                sandbox.rollback(other_state)
            client.delete_snapshot(other_state)
        with pytest.raises(ValueError, match="at least 1"):
            sandbox.fork(0)
    with pytest.raises(ValueError, match="one of image, pool, template and snapshot"):
        Sandbox("host", snapshot="x")
    with pytest.raises(ValueError, match="has the settings of its sandbox"):
        client.sandbox(snapshot="x", memory="1Gi").open()
    with pytest.raises(ValueError, match="seconds above 0"):
        client.sandbox(snapshot="x", expires_after=-1).open()


def test_snapshots_asynchronously(engine):
    async def run():
        client = AsyncClient(kubeconfig=str(engine.kubeconfig))
        async with client.sandbox("host") as sandbox:
            await sandbox.run("echo one > state")
            taken = await sandbox.snapshot()
            assert isinstance(taken, Snapshot) and taken.name in [one.name for one in await client.snapshots()]
            await sandbox.run("echo two > state")
            (fork,) = await sandbox.fork()
            async with fork:
                assert (await fork.run("cat state")).stdout == "two\n"
            await sandbox.rollback(taken)
            assert (await sandbox.run("cat state")).stdout == "one\n"
            async with client.sandbox(snapshot=taken) as other:
                assert (await other.run("cat state")).stdout == "one\n"
            await client.delete_snapshot(taken)
            with pytest.raises(errors.SnapshotNotFoundError):
                await sandbox.rollback("no-such")

    asyncio.run(run())
