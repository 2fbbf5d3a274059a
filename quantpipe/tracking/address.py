"""Resolve the address of the tracking store: from the configuration (or the environment) to an absolute one.

MLflow itself anchors relative addresses in the working directory and retries an unreachable store for minutes; so the
address is made absolute and tried here, before anything else runs. A password in it may hold `@` and `/`: it is
encoded here, so that no part of it is taken for the host.
"""

from __future__ import annotations

import http.client
import os
import shlex
import socket
import sqlite3
import ssl
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from quantpipe.errors import ConfigError
from quantpipe.passwords import encoded, remember_address, without_passwords

_SQLITE = "sqlite:///"
_DEFAULT_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_LEGAL = (
    "Legal: tracking.uri=null (a database in the launch folder), sqlite:///FILE.db, http(s)://HOST:PORT, "
    "postgresql://…, or tracking=none"
)


@dataclass(frozen=True)
class Address:
    """A store's absolute address.

    `database` is its file where it is an SQLite file; `artifacts` is where a new experiment keeps its files (None: the
    server decides).
    """

    uri: str
    database: Path | None
    artifacts: Path | None

    @property
    def shown(self) -> str:
        """Return the address as it may be printed: without a password."""
        return without_passwords(self.uri)

    @property
    def ui_command(self) -> str:
        """Return how to view the runs: a command, or the server's own address."""
        return self.shown if self.artifacts is None else f"mlflow ui --backend-store-uri {shlex.quote(self.shown)}"


def resolve(uri: str | None, launch_folder: Path) -> Address:
    """Return the address that `uri` means.

    null means MLFLOW_TRACKING_URI if that is set, else `mlflow.db` in the launch folder.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    remember_address(uri)
    uri = encoded(uri)
    scheme = _split(uri).scheme if "://" in uri or uri.startswith("file:") else ""
    if scheme in ("", "file") and not uri.startswith("databricks") and "MLFLOW_ALLOW_FILE_STORE" not in os.environ:
        raise _refused(uri, "MLflow no longer keeps runs in plain folders")
    if uri.startswith(_SQLITE) and ":memory:" not in uri:
        database = launch_folder / uri.removeprefix(_SQLITE)
        if set("%?") & set(str(database)):
            raise _refused(uri, f"an SQLite address cannot hold the characters % and ? (file {database})")
        return Address(f"{_SQLITE}{database}", database, database.parent / "mlruns")
    remote = scheme in ("http", "https") or uri.startswith("databricks")
    return Address(uri, None, None if remote else launch_folder / "mlruns")


def check_reachable(address: Address) -> None:
    """Raise ConfigError when the file cannot be a database, or nobody listens at the host and port."""
    if address.database is not None:
        _check_file(address.uri, address.database)
        return
    parts = _split(address.uri)
    dialect = parts.scheme.partition("+")[0]
    if parts.hostname is None or dialect not in _DEFAULT_PORTS or _proxied(parts):
        return
    try:
        host = (parts.hostname, parts.port or _DEFAULT_PORTS[dialect])
        with socket.create_connection(host, timeout=_CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise _refused(address.uri, f"nobody answers there ({error})") from error
    if parts.scheme in ("http", "https"):
        _check_answer(address.uri, parts, host)


def _check_answer(uri: str, parts: SplitResult, host: tuple[str, int]) -> None:
    """Raise ConfigError where the server accepts the connection and does not answer.

    Any response is an answer: no request needs a password, so the certificate is not checked, either.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secure = parts.scheme == "https"
    connection = (
        http.client.HTTPSConnection(*host, timeout=_ANSWER_SECONDS, context=context)
        if secure
        else http.client.HTTPConnection(*host, timeout=_ANSWER_SECONDS)
    )
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health")
        connection.getresponse()
    except TimeoutError as error:
        raise _refused(uri, f"the server takes the connection and gives no answer in {_ANSWER_SECONDS:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise _refused(uri, f"what answers there is no web server ({type(error).__name__}: {error})") from error
    finally:
        connection.close()


def _check_file(uri: str, database: Path) -> None:
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(database, timeout=_CONNECT_SECONDS)) as connection:
            connection.execute("PRAGMA schema_version")
    except (OSError, sqlite3.DatabaseError) as error:
        if "locked" not in str(error):  # someone else writes: that passes
            raise _refused(uri, f"{database} cannot be used as a database ({error})") from error
    if not (os.access(database.parent, os.W_OK) and os.access(database, os.W_OK)):
        raise _refused(uri, f"{database} or its folder cannot be written")


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise _refused(uri, str(error)) from error


def _proxied(parts: SplitResult) -> bool:
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname or "")


def _refused(uri: str, reason: str) -> ConfigError:
    return ConfigError(f"{reason}. {_LEGAL}", stage="tracking", where=f"tracking.uri={without_passwords(uri)}")
