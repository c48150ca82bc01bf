"""Every exception of Overproof, in one tree.

OverproofError
├── PermanentError            trying again cannot help; a job that raises one FAILS at once
│   ├── InvalidSpec           a spec has faults; all of them are listed, each with its path
│   ├── UnknownPlugin         no plug-in of that name; close matches are listed
│   ├── DuplicatePlugin       two plug-ins claim one name
│   ├── PluginUnavailable     the plug-in exists, what it needs is not installed
│   ├── MalformedMessage      bytes on the bus that are no envelope
│   ├── MalformedArtifact     bytes in the store that are not what their name says
│   ├── InvalidKey            an artifact key that leaves its folder
│   ├── InvalidData           a data set or checkpoint that users brought is unusable
│   ├── NonFiniteLoss         training or distillation diverged
│   └── ShapeError            arrays that do not fit together
├── TransientError            worth another attempt, after a delay
│   ├── BusUnavailable        Kafka does not answer
│   ├── StoreUnavailable      the artifact store does not answer, or its disk is full
│   ├── DatabaseUnavailable   the database does not answer
│   ├── ArtifactMissing       a manifest names a file that is not there
│   ├── ArtifactCorrupt       a file does not have the hash its manifest says
│   ├── OutOfMemory           the device had too little memory
│   ├── TimeLimitExceeded     an attempt took longer than it may; the next one resumes it
│   └── WorkerLost            the process that ran a job died
├── StopSignal                not failures: the job was asked to stop
│   ├── JobCancelled
│   └── ShuttingDown
├── NotFound                  no experiment, job or unit of that id
├── OtherSteps                a checkpoint of the same work, done in other steps
└── SettingsError             an environment variable has a value that cannot be used

Messages say what happened, to which thing, and what to do. They never hold a secret: URLs go
through `redact` first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class OverproofError(Exception):
    """What all errors raised on purpose have in common."""


class PermanentError(OverproofError):
    """Another attempt would end the same way."""


class TransientError(OverproofError):
    """Another attempt may succeed."""


class StopSignal(OverproofError):
    """The job was asked to stop; it did not fail."""


class InvalidSpec(PermanentError):
    """A spec that cannot be used.

    Args:
        faults: one line each, beginning with the path of the field.
        source: file or field that holds the spec.
    """

    def __init__(self, faults: Sequence[str], source: str = "spec") -> None:
        self.faults = tuple(faults)
        self.source = source
        lines = "".join(f"\n  - {fault}" for fault in self.faults)
        count = f"{len(self.faults)} fault{'s' if len(self.faults) != 1 else ''}"
        super().__init__(f"{source} has {count}:{lines}")


class UnknownPlugin(PermanentError):
    """No plug-in of that name; the message lists close matches."""


class DuplicatePlugin(PermanentError):
    """Two plug-ins claim one name; the message names both targets."""


class PluginUnavailable(PermanentError):
    """A plug-in whose dependencies are not installed; the message names them."""


class MalformedMessage(PermanentError):
    """Bytes on the bus that are no envelope.

    Args:
        raw: the bytes as received, kept for the dead letter.
        reason: what is wrong with them.
    """

    def __init__(self, raw: bytes, reason: str) -> None:
        self.raw = raw
        self.reason = reason
        super().__init__(f"message of {len(raw)} bytes is malformed: {reason}")


class MalformedArtifact(PermanentError):
    """A stored file that is not what its name says."""


class InvalidKey(PermanentError):
    """An artifact key that is not a plain relative path."""


class InvalidData(PermanentError):
    """A data set or checkpoint brought by a user that cannot be used."""


class NonFiniteLoss(PermanentError):
    """Training or distillation diverged."""


class ShapeError(PermanentError):
    """Arrays whose shapes do not fit together."""


class BusUnavailable(TransientError):
    """The message bus does not answer."""


class StoreUnavailable(TransientError):
    """The artifact store does not answer or cannot take more."""


class DatabaseUnavailable(TransientError):
    """The database does not answer."""


class ArtifactMissing(TransientError):
    """A file that a manifest names is not in the store."""


class ArtifactCorrupt(TransientError):
    """A file whose bytes do not have the hash that its manifest says."""


class OutOfMemory(TransientError):
    """The device ran out of memory."""


class TimeLimitExceeded(TransientError):
    """An attempt took longer than the worker allows."""


class WorkerLost(TransientError):
    """The process that ran a job died without a word."""


class JobCancelled(StopSignal):
    """No live experiment wants the job any more."""


class ShuttingDown(StopSignal):
    """The worker was told to end; the job goes back to READY."""


class NotFound(OverproofError):
    """No experiment, job or unit of that id."""


class OtherSteps(OverproofError):
    """A checkpoint is of the same work done in other steps, so that the work starts over."""


class SettingsError(OverproofError):
    """A setting with a value that cannot be used."""


def redact(text: str) -> str:
    """`text` with the passwords of all URLs in it replaced by `***`."""
    return re.sub(r"(://[^\s/:@]*:)[^\s@]+@", r"\1***@", text)
