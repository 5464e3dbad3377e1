# SPDX-License-Identifier: Apache-2.0
"""How workers get to the scheduler: which addresses, which keys, and who may read them meanwhile."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Security

from koala_adapter.config.sitefile import ControlCenterConfig
from koala_adapter.dask.cluster import (
    CREDENTIALS,
    KoalaCluster,
    as_nodes_reach_it,
    credentials_of_workers,
    files_of,
    listening_address,
)
from koala_adapter.errors import ConfigurationError


@pytest.mark.parametrize(
    ("host", "address"),
    [("login", "tls://login:4711"), ("10.0.0.1", "tls://10.0.0.1:4711"), ("fd00::1", "tls://[fd00::1]:4711")],
)
def test_nodes_get_the_name_that_they_know(host: str, address: str) -> None:
    """The port is that of the scheduler, the host is that which the nodes can reach."""
    assert as_nodes_reach_it("tls://127.0.0.1:4711", host) == address


@pytest.mark.parametrize(
    ("host", "listens"),
    [(None, "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("login.outside.example", "0.0.0.0")],
)
def test_the_scheduler_listens_where_it_is_reached(host: str | None, listens: str) -> None:
    """As the control center does, unless told otherwise; a name may be one of a gateway that passes connections on."""
    center = ControlCenterConfig.model_validate({"listen": "127.0.0.1"})
    assert listening_address(center, host) == listens


def test_a_temporary_key_goes_to_the_workers() -> None:
    """All three parts, as the texts that they are."""
    security = Security.temporary()
    assert credentials_of_workers(security) == {
        CREDENTIALS["ca_file"]: security.tls_ca_file,
        CREDENTIALS["cert"]: security.tls_worker_cert,
        CREDENTIALS["key"]: security.tls_worker_key,
    }


def test_a_key_in_files_goes_to_the_workers(tmp_path: Path) -> None:
    """Certificate and key may be in one file; without TLS there is none; a file that is not there is named."""
    both = tmp_path / "both.pem"
    both.write_text("-----\nkey and certificate\n")
    security = Security(tls_ca_file=str(both), tls_worker_cert=str(both), require_encryption=True)
    assert set(credentials_of_workers(security).values()) == {"-----\nkey and certificate\n"}
    assert credentials_of_workers(Security()) == {}
    both.unlink()
    with pytest.raises(ConfigurationError, match=r"both\.pem: No such file"):
        credentials_of_workers(security)


def test_files_are_private_and_go(tmp_path: Path) -> None:
    """Nobody else can read a key, and it is not left anywhere."""
    with files_of({"key.pem": "secret"}, tmp_path / "private") as files:
        path = Path(files["key.pem"])
        assert path.read_text() == "secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_without_distributed_the_way_out_is_told() -> None:
    """The error says what is to be installed; nothing else of koala-adapter wants it."""
    program = (
        "import sys\nsys.modules['distributed'] = None\nimport koala_adapter.cli.run, koala_adapter.service.service\n"
        "try:\n    import koala_adapter.dask\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert "pip install 'koala-adapter[dask]'" in done.stdout


def test_a_missing_site_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the command line, with what is found on this host; here nothing is."""
    monkeypatch.delenv("KOALA_SITE", raising=False)
    for name in ("HOME", "PATH", "KOALA_STATE"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no site file found.*; no batch system (was found|can be used)"):
        _ = KoalaCluster(maximum=2)
