"""The whole path in our own words, with a published SDK: create, run, write, read, list, terminate."""

import pytest
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from which_sdk import OLD, VERSION

SOURCE = "python-sandbox-template"


def direct(engine):
    """From 1.0 on the SDK can send the token that the router asks for."""
    headers = {} if VERSION.startswith("0.") else {"extra_headers": {"Authorization": f"Bearer {engine.token()}"}}
    return SandboxDirectConnectionConfig(api_url=engine.router, **headers)


def clients(engine):
    yield "tunnel", SandboxClient()
    yield "direct", SandboxClient(connection_config=direct(engine))


@pytest.mark.parametrize("mode", ["tunnel", "direct"])
def test_a_sandbox_runs_commands_and_keeps_files(engine, mode):
    """D-180, D-181, D-182: an unmodified SDK against our API, router and runtime."""
    client = dict(clients(engine))[mode]
    sandbox = client.create_sandbox(SOURCE)
    try:
        result = sandbox.commands.run("echo hi; echo oops >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("hi\n", "oops\n", 3)
        sandbox.commands.run("mkdir -p /home/user/box && echo 'analysis complete' > /home/user/box/results.txt")
        assert sandbox.files.read("/home/user/box/results.txt") == b"analysis complete\n"
        sandbox.files.write("/home/user/hello.txt", "Hello from the SDK!")
        assert sandbox.files.exists("/home/user/hello.txt")
        if not OLD:
            names = {entry.name for entry in sandbox.files.list("/home/user")}
            assert {"box", "hello.txt"} <= names
    finally:
        sandbox.terminate()


def test_two_sandboxes_are_two_computers(engine):
    client = SandboxClient()
    first, second = client.create_sandbox(SOURCE), client.create_sandbox(SOURCE)
    try:
        first.files.write("/home/user/mine.txt", "1")
        assert not second.files.exists("/home/user/mine.txt")
        assert first.claim_name != second.claim_name
    finally:
        client.delete_all()
    assert client.list_all_sandboxes() == []


def test_an_unknown_source_is_a_clear_error(engine):
    """D-187: the SDK's own exception, well before the timeout."""
    from k8s_agent_sandbox import exceptions

    wanted = exceptions.SandboxTemplateNotFoundError if OLD else exceptions.SandboxWarmPoolNotFoundError
    with pytest.raises(wanted):
        SandboxClient().create_sandbox("no-such-thing", sandbox_ready_timeout=30)
