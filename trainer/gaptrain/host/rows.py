"""What is stored of a robot, decoded: a row that cannot be read is the damage of that robot, and of no other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeVar

import msgspec

from gapd.errors import GapdError
from gaptrain.host.database import HostError

T = TypeVar("T", bound=msgspec.Struct)

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # also the name of a file: nothing else may be one
Count = Annotated[int, msgspec.Meta(ge=0)]
Rising = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]  # the next one, too, must be an integer of SQLite
WallTime = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]  # s, up to the year 9999

RESTORE = "restore the state from a backup"
ENROL = "run `gaptrain enrol {robot}` again, or " + RESTORE
# All that decoding of bytes, JSON, numbers, times and parameters raises. No sqlite3.Error: that is of the whole file.
_UNREADABLE = (
    GapdError, msgspec.MsgspecError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip


class DamagedError(HostError):
    """A row of one robot that cannot be read; the rows of the others can."""

    def __init__(self, robot: object, table: str, what: object, remedy: str = RESTORE) -> None:
        """Name robot and table, what is wrong with the row, and what to do."""
        self.robot = robot.decode(errors="backslashreplace") if isinstance(robot, bytes) else str(robot)
        super().__init__(f"robot {self.robot}, table {table}: {what}; {remedy.format(robot=self.robot)}")


@contextmanager
def of_robot(robot: object, table: str, remedy: str = RESTORE) -> Iterator[None]:
    """Decode in this block what one robot has in a table: DamagedError for whatever cannot be."""
    try:
        yield
    except DamagedError:
        raise
    except _UNREADABLE as error:
        raise DamagedError(robot, table, error, remedy) from None


def decode_row(kind: type[T], row: Sequence[object], robot: object, table: str, remedy: str = RESTORE) -> T:
    """A row, its columns in the order of the fields; DamagedError names the first column that is wrong."""
    with of_robot(robot, table, remedy):
        return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)
