"""How an exception crosses from one process to another: as data, never pickled."""

from __future__ import annotations

import traceback

from pydantic import BaseModel, ConfigDict

from overproof import errors
from overproof.errors import PermanentError, StopSignal, redact

_MESSAGE_LIMIT = 4_000
_TRACEBACK_LIMIT = 16_000


class FailureReport(BaseModel):
    """What went wrong in a job.

    Attributes:
        type_name: class of the exception.
        message: its text, without secrets; the first line is shown in lists.
        traceback: for the people who debug; the end of it when it is long.
        retryable: whether another attempt may succeed. Exceptions that are not Overproof's own
            count as retryable, up to the limit of attempts.
    """

    model_config = ConfigDict(frozen=True)

    type_name: str
    message: str
    traceback: str = ""
    retryable: bool

    @classmethod
    def of(cls, error: BaseException) -> FailureReport:
        """The report of `error`."""
        trace = "".join(traceback.format_exception(error))
        return cls(
            type_name=type(error).__name__,
            message=redact(str(error) or repr(error))[:_MESSAGE_LIMIT],
            traceback=redact(trace)[-_TRACEBACK_LIMIT:],
            retryable=not isinstance(error, PermanentError | StopSignal),
        )

    @property
    def summary(self) -> str:
        """One line: type and first line of the message."""
        return f"{self.type_name}: {self.message.splitlines()[0] if self.message else ''}"

    @property
    def is_stop(self) -> bool:
        """Whether the job was asked to stop rather than failed."""
        cls = getattr(errors, self.type_name, None)
        return isinstance(cls, type) and issubclass(cls, StopSignal)
