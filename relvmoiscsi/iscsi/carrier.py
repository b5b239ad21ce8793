# SPDX-License-Identifier: LGPL-2.1-only
"""What a LUN needs of a connection: `link.Link` is one over TCP, tests have one in memory."""

from abc import ABC, abstractmethod
from typing import Callable

from relvmoiscsi.iscsi.names import Portal
from relvmoiscsi.iscsi.session import Session


class Carrier(ABC):
    """A session that is logged in, and a way to wait for its answers."""

    session: Session
    portal: Portal  #: where it is, after redirections

    @abstractmethod
    def wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Return once it is done. Raises Lost, and OutOfTime, which says what was not done in time."""

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait for as long, and answer the target meanwhile. Raises Lost and OutOfTime."""

    @abstractmethod
    def pump(self) -> None:
        """Answer what the target has asked meanwhile, at once. Raises nothing: the next `wait` tells what is lost."""

    @abstractmethod
    def close(self, politely: bool) -> None:
        """End it; politely: with a logout, for which the target has a moment. Raises nothing."""


class Way(ABC):
    """How a session to the target of a LUN comes about."""

    @abstractmethod
    def first(self) -> Carrier:
        """A session through the first portal that gives one. Raises what the login raises."""

    @abstractmethod
    def again(self, attempt: int) -> Carrier:
        """A session in the place of one that was lost, with the same ISID: the target ends the old one.

        `attempt` counts from 1 how often in a row one was lost. Raises LoginRefused where no attempt will help, and
        OutOfTime, which says what has happened.
        """

    @abstractmethod
    def move(self) -> bool:
        """Have the next session come through another portal of the target; False when all have been tried."""
