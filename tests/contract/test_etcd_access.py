"""fmproto.etcd alone: how it is made, TLS, and logins whose tokens expire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fmproto.etcd import Etcd, Tls
from fmproto.kv import Changes, Put, Resync, StoreUnavailable
from tests.support.etcd import EtcdServer, Version, any_etcd, make_certificates, start_etcd
from tests.support.following import Following

TOKEN_TTL_S = 1
PASSWORD = "throw-away"


def test_naming_the_module_imports_neither_grpc_nor_the_wire_types() -> None:
    code = "import sys, fmproto.etcd; print(sorted({'grpc', 'etcd3', 'google.protobuf'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:2379", "127.0.0.1", ":2379", "host:port", "", "127.0.0.1:2379/"])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not host:port") as error:
        Etcd(["127.0.0.1:2379", endpoint])
    assert repr(endpoint) in str(error.value)


def test_settings_that_lack_their_other_half_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no endpoints"):
        Etcd([])
    with pytest.raises(ValueError, match="user and password"):
        Etcd(["127.0.0.1:2379"], user="root")
    with pytest.raises(ValueError, match="give both or neither"):
        Tls(ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem")


async def test_tls_files_are_read_and_checked(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "one", any_etcd(), tls=True) as server:
        assert server.tls is not None
        stranger, _, _ = make_certificates(tmp_path / "stranger")
        wrong = {
            "another authority": stranger,
            "no client certificate": replace(server.tls, cert=None, key=None),
            "a file that is not there": replace(server.tls, ca=tmp_path / "absent.pem"),
            "no TLS": None,
        }
        for name, tls in wrong.items():
            etcd = Etcd(server.endpoints, tls=tls, request_timeout_s=2.0)
            with pytest.raises(StoreUnavailable) as error:
                await etcd.get("/a")
            assert server.endpoints[0] in str(error.value), name
            await etcd.close()
        right = Etcd(server.endpoints, tls=server.tls)
        assert isinstance(await right.write([], [Put("/a", b"1")]), int)
        await right.close()


@pytest.fixture(params=["3.4", "3.5"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdServer]:
    """etcd that wants a login, with tokens that live for TOKEN_TTL_S when unused."""
    version: Version = request.param
    with start_etcd(tmp_path / "auth", version, extra=[f"--auth-token-ttl={TOKEN_TTL_S}"]) as server:
        server.ctl("user", "add", f"root:{PASSWORD}")
        server.ctl("user", "grant-role", "root", "root")
        server.ctl("role", "add", "reader")
        server.ctl("role", "grant-permission", "reader", "read", "--prefix=true", "/open/")
        server.ctl("user", "add", f"guest:{PASSWORD}")
        server.ctl("user", "grant-role", "guest", "reader")
        server.ctl("auth", "enable")
        yield server


async def test_a_login_lasts_over_expired_tokens_and_restarts(guarded: EtcdServer) -> None:
    etcd = Etcd(guarded.endpoints, user="root", password=PASSWORD, watch_period_s=0.2)
    async with Following(etcd, "/") as seen:
        await seen.until(lambda me: len(me.items) >= 2)
        lease = await etcd.grant(60)
        await etcd.write([], [Put("/a", b"1", lease)])
        # The watch itself uses no token: left alone, the token expires.
        last = seen.told_at_s[-1]
        await seen.until(lambda me: me.told_at_s[-1] > last + 2 * TOKEN_TTL_S + 1)
        assert isinstance(await etcd.write([], [Put("/a", b"2", lease)]), int)
        await etcd.renew(lease)
        guarded.members[0].kill()
        guarded.members[0].start()
        guarded.wait_ready()
        await seen.until(lambda me: me.picture.get("/a") == b"2")
        told = len(seen.items)
        await seen.until(lambda me: len(me.items) > told + 2)
        await etcd.write([], [Put("/a", b"3", lease)])
        await seen.until(lambda me: me.picture.get("/a") == b"3")
    assert len(seen.resyncs) == 1
    await etcd.close()


async def test_a_new_watch_after_the_token_expired_is_told_everything(guarded: EtcdServer) -> None:
    etcd = Etcd(guarded.endpoints, user="root", password=PASSWORD, watch_period_s=0.2)
    async with Following(etcd, "/") as first:
        await first.until(lambda me: len(me.items) >= 2 and me.told_at_s[-1] - me.told_at_s[0] > 2 * TOKEN_TTL_S + 1)
        async with Following(etcd, "/later/") as second:
            await second.until(lambda me: len(me.items) >= 2)
            await etcd.write([], [Put("/later/a", b"1")])
            await second.until(lambda me: me.picture == {"/later/a": b"1"})
    await etcd.close()


async def test_a_wrong_login_says_what_is_wrong(guarded: EtcdServer) -> None:
    nobody = Etcd(guarded.endpoints, request_timeout_s=2.0)
    with pytest.raises(StoreUnavailable, match="not authenticated"):
        await nobody.get("/a")
    await nobody.close()
    wrong = Etcd(guarded.endpoints, user="root", password="wrong", request_timeout_s=2.0)
    with pytest.raises(StoreUnavailable, match="invalid user ID or password"):
        await wrong.get("/a")
    await wrong.close()


async def test_what_a_login_may_not_do_is_refused_by_name(guarded: EtcdServer) -> None:
    guest = Etcd(guarded.endpoints, user="guest", password=PASSWORD, request_timeout_s=2.0)
    with pytest.raises(StoreUnavailable, match="PERMISSION_DENIED"):
        await guest.write([], [Put("/open/a", b"1")])
    with pytest.raises(StoreUnavailable, match="PERMISSION_DENIED"):
        await guest.read("/")
    assert (await guest.read("/open/")).entries == ()
    follower = guest.follow("/open/")
    assert isinstance(await anext(follower), Resync)
    assert isinstance(await anext(follower), Changes)
    await follower.aclose()
    await guest.close()
