"""An artifact store in a bucket of any S3 server, through plain S3 calls only."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import parse_qsl, urlsplit

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import IamAwsProvider, Provider
from minio.error import InvalidResponseError, S3Error, ServerError
from minio.helpers import check_bucket_name

from overproof.artifacts.base import ArtifactStore
from overproof.artifacts.transfer import CHUNK_BYTES, HashingReader, write_verified
from overproof.core.clock import Clock, SystemClock
from overproof.core.refs import ArtifactRef, checked_key, checked_prefix
from overproof.errors import ArtifactMissing, SettingsError, StoreUnavailable

_ABSENT = frozenset({"NoSuchKey", "NoSuchObject", "ResourceNotFound"})
_BUCKET_IS_THERE = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})
_OPTIONS = frozenset({"endpoint", "secure", "region", "cafile", "credentials"})

# Parts of a large file; one is in memory at a time.
_PART_BYTES = 16 << 20
# A server that is down answers within seconds that it is; what is worth more patience is for the
# caller to retry, who keeps its lease meanwhile.
_TIMEOUT = urllib3.Timeout(connect=5, read=60)
_RETRIES = urllib3.Retry(
    total=3, backoff_factor=0.3, backoff_max=2, status_forcelist=(500, 502, 503, 504)
)
_CONDITIONAL_ATTEMPTS = 6
# After these the object may be stored or not, and another attempt may succeed.
_UNSURE = frozenset({500, 502, 503, 504})


class S3Store(ArtifactStore):
    """Keeps each artifact in the object of its key.

    The bucket is made by the first call if it is missing and the credentials permit that; nothing
    is sent before.

    Args:
        endpoint: host and port.
        bucket: its name.
        access_key: id of the credentials.
        secret_key: their secret; never in a message.
        role: instead of the keys, those that the platform gives to whom it runs: by a web identity
            (AWS_WEB_IDENTITY_TOKEN_FILE), a container's or a machine's role. They are renewed.
        secure: TLS or not.
        region: the bucket's region; servers outside AWS ignore it.
        cafile: certificates to trust instead of the usual ones.
        clock: waits between attempts.

    Raises:
        SettingsError: an endpoint, a bucket name or a `cafile` that cannot be used.
    """

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        access_key: str,
        secret_key: str,
        *,
        role: bool = False,
        secure: bool = True,
        region: str = "us-east-1",
        cafile: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = f"s3://{bucket} at {endpoint}"
        self._bucket = bucket
        self._clock = clock or SystemClock()
        self._pool = urllib3.PoolManager(
            timeout=_TIMEOUT,
            retries=_RETRIES,
            maxsize=16,
            ssl_context=self._trusting(cafile),
        )
        try:
            check_bucket_name(bucket)
            self._client = Minio(
                endpoint,
                access_key=access_key,
                secret_key=secret_key,
                credentials=_Role(self._name, self._pool) if role else None,
                secure=secure,
                region=region,
                http_client=self._pool,
            )
        except ValueError as error:
            raise SettingsError(f"{self._name} cannot be used: {error}; correct its URL") from None
        self._bucket_lock = threading.Lock()
        self._has_bucket = False

    @classmethod
    def from_url(cls, url: str, *, access_key: str, secret_key: str) -> S3Store:
        """A store from `s3://bucket?endpoint=host:port&secure=false&region=…&cafile=…`.

        With `credentials=role` the keys are those of the platform's role, and none may be given.

        Raises:
            SettingsError: the URL has no bucket or endpoint, an unknown option, or credentials.
        """
        example = "write s3://bucket?endpoint=host:port"
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "@" in parts.netloc:
            raise SettingsError("the S3 URL holds credentials; set them apart from it")
        if parts.scheme != "s3" or not parts.netloc or parts.path.strip("/"):
            raise SettingsError(f"{url!r} does not name a bucket; {example}")
        if unknown := sorted(set(options) - _OPTIONS):
            raise SettingsError(
                f"{url!r} has unknown options {', '.join(unknown)}; "
                f"known are {', '.join(sorted(_OPTIONS))}"
            )
        if not options.get("endpoint"):
            raise SettingsError(f"{url!r} has no endpoint; {example}")
        secure = options.get("secure", "true").lower()
        if secure not in {"true", "false"}:
            raise SettingsError(f"{url!r} has secure={secure}; write true or false")
        credentials = options.get("credentials", "keys")
        if credentials not in {"keys", "role"}:
            raise SettingsError(f"{url!r} has credentials={credentials}; write keys or role")
        if credentials == "role" and (access_key or secret_key):
            raise SettingsError(f"{url!r} asks for a role, but keys are set; unset one of the two")
        return cls(
            options["endpoint"],
            parts.netloc,
            access_key,
            secret_key,
            role=credentials == "role",
            secure=secure == "true",
            region=options.get("region") or "us-east-1",
            cafile=options.get("cafile") or None,
        )

    def put(self, key: str, source: Path, *, media_type: str) -> ArtifactRef:
        """One PUT, or a multipart upload: an object appears when its last byte is there."""
        checked_key(key)
        with source.open("rb") as file, self._errors(f"artifact {key}"):
            self._ensure_bucket()
            reader = HashingReader(file)
            self._client.put_object(
                self._bucket,
                key,
                cast(BinaryIO, reader),  # of a file, the client only calls read
                length=source.stat().st_size,
                content_type=media_type,
                part_size=_PART_BYTES,
                num_parallel_uploads=1,
            )
            return reader.ref(key, media_type)

    def put_once(self, key: str, data: bytes) -> bool:
        """A conditional PUT, in presigned form since the client has no other that takes one."""
        checked_key(key)
        with self._errors(f"artifact {key}"):
            self._ensure_bucket()
            return self._put_if_absent(key, data)

    def fetch(self, ref: ArtifactRef, into: Path) -> Path:
        """Stream, verify, rename."""
        checked_key(ref.key)
        with self._errors(f"artifact {ref.key}"):
            self._ensure_bucket()
            try:
                response = self._client.get_object(self._bucket, ref.key)
            except S3Error as error:
                if error.code not in _ABSENT:
                    raise
                raise ArtifactMissing(
                    f"artifact {ref.key} is not in {self._name}; its job must make it again"
                ) from None
            try:
                write_verified(response.stream(CHUNK_BYTES), ref, into)
            finally:
                # A response that was not read to its end cannot share its connection.
                response.close()
                response.release_conn()
        return into

    def read(self, key: str) -> bytes | None:
        """The bytes of the object, None when absent."""
        checked_key(key)
        with self._errors(f"artifact {key}"):
            self._ensure_bucket()
            try:
                response = self._client.get_object(self._bucket, key)
            except S3Error as error:
                if error.code not in _ABSENT:
                    raise
                return None
            try:
                data: bytes = response.read()
            finally:
                response.close()
                response.release_conn()
        return data

    def size_bytes(self, key: str) -> int | None:
        """The size of the object, None when absent."""
        checked_key(key)
        with self._errors(f"artifact {key}"):
            self._ensure_bucket()
            try:
                return cast(int, self._client.stat_object(self._bucket, key).size)
            except S3Error as error:
                if error.code not in _ABSENT:
                    raise
                return None

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
        return self.size_bytes(key) is not None

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the folder `prefix`, sorted."""
        checked_prefix(prefix)
        with self._errors(f"prefix {prefix or '(all)'}"):
            self._ensure_bucket()
            listed = self._client.list_objects(self._bucket, prefix=prefix, recursive=True)
            return iter(sorted(item.object_name for item in listed))

    def delete(self, key: str) -> None:
        """Remove the object."""
        checked_key(key)
        with self._errors(f"artifact {key}"):
            self._ensure_bucket()
            self._client.remove_object(self._bucket, key)

    def check(self) -> str:
        """Write, read and delete a probe; bucket and endpoint."""
        key = f"probe/{secrets.token_hex(8)}"
        probe = b"probe"
        with self._errors("probe"):
            self._ensure_bucket()
            self._client.put_object(self._bucket, key, BytesIO(probe), length=len(probe))
        if self.read(key) != probe or self.put_once(key, b"other"):
            raise StoreUnavailable(
                f"{self._name} ignores If-None-Match or does not give back what was written; "
                "use an S3 server with conditional writes"
            )
        self.delete(key)
        return self._name

    def _put_if_absent(self, key: str, data: bytes) -> bool:
        url = self._client.get_presigned_url(
            "PUT", self._bucket, key, expires=timedelta(minutes=10)
        )
        # After an attempt without an answer, "exists" may mean that this very attempt was stored.
        unanswered = False
        problem = ""
        for attempt in range(_CONDITIONAL_ATTEMPTS):
            if attempt:
                self._clock.sleep(min(2.0, 0.1 * 2**attempt))
            try:
                response = self._pool.urlopen(
                    "PUT", url, body=data, headers={"If-None-Match": "*"}, retries=False
                )
            except urllib3.exceptions.HTTPError as error:
                unanswered = True
                problem = type(error).__name__
                continue
            if response.status in {200, 204}:
                return True
            if response.status == 412:
                return unanswered and self.read(key) == data
            problem = _code_of(response)
            if response.status in _UNSURE:
                unanswered = True
            elif response.status != 409:  # 409: two conditional writes met, neither was stored
                break
        raise StoreUnavailable(self._refusal(f"artifact {key}", problem))

    def _ensure_bucket(self) -> None:
        with self._bucket_lock:
            if not self._has_bucket:
                self._make_bucket()
                self._has_bucket = True

    def _make_bucket(self) -> None:
        try:
            if not self._client.bucket_exists(self._bucket):
                self._client.make_bucket(self._bucket)
        except S3Error as error:
            # Credentials may be good for objects alone; then the bucket is taken on trust.
            if error.code not in _BUCKET_IS_THERE | {"AccessDenied"}:
                raise

    def _trusting(self, cafile: str | None) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=cafile)
        except OSError as error:
            raise SettingsError(
                f"{self._name}: cafile {cafile!r} cannot be used: {error.strerror}; "
                "name a file of PEM certificates"
            ) from None

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        # Texts of urllib3 and of the client hold signed URLs, so none of them is passed on.
        try:
            yield
        except S3Error as error:
            raise StoreUnavailable(self._refusal(what, str(error.code))) from None
        except (ServerError, InvalidResponseError, urllib3.exceptions.HTTPError) as error:
            cause = getattr(error, "reason", None)  # what the last of several attempts met
            kind = type(cause if isinstance(cause, Exception) else error).__name__
            raise StoreUnavailable(self._refusal(what, kind)) from None

    def _refusal(self, what: str, problem: str) -> str:
        return (
            f"{self._name} did not serve {what}: {problem}; "
            "see whether it runs, its free space, the bucket and the credentials"
        )


class _Role(Provider):
    """Keys of the platform's role. Whatever keeps them away is an outage of the store."""

    def __init__(self, name: str, pool: urllib3.PoolManager) -> None:
        self._name = name
        self._provider = IamAwsProvider(http_client=pool)

    def retrieve(self) -> Credentials:
        try:
            return self._provider.retrieve()
        except (ValueError, KeyError, OSError) as error:
            # The library's texts hold answers with tokens in them.
            raise StoreUnavailable(
                f"{self._name}: no credentials of a role ({type(error).__name__}); see whether the "
                "platform gives one to this process"
            ) from None


def _code_of(response: urllib3.BaseHTTPResponse) -> str:
    """The error code in an S3 answer, or its HTTP status."""
    _, found, rest = response.data.partition(b"<Code>")
    return rest.partition(b"</Code>")[0][:60].decode() if found else f"HTTP {response.status}"
