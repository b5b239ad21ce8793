# SPDX-License-Identifier: LGPL-2.1-only
"""A drawing of states and transitions as SVG, from their table alone.

back         ____________
            |   ______   |          lanes above the row: towards its beginning
            v  v      |  |
row        [a]--->[b]--->[c]        the states that follow each other, from the first one on
                   |
side              [d]               what is reached from one of them only
"""

from html import escape
from typing import Dict, List, NamedTuple, Sequence, Tuple

BOX_WIDTH, BOX_HEIGHT = 108, 36
GAP = 112  #: between two boxes of the row; labels of the arrows between them stand there
LINE = 14  #: height of a line of text
PORT = 18  #: between two ends of arrows at one side of a box


class Lane(NamedTuple):
    """A way that does not go straight: over the row, or under it."""

    start: int
    end: int
    texts: Tuple[str, ...]


def drawing(row: Sequence[str], side: Sequence[str], transitions: Sequence[Tuple[str, str, str]]) -> str:
    """The SVG element. A transition is (state, event, becomes); those that leave a state as it is are left out.

    `side` are the states beside the row; each is reached from one state of the row, and leads back to the row.
    """
    ways: Dict[Tuple[str, str], List[str]] = {}
    for state, event, becomes in transitions:
        if state != becomes:
            ways.setdefault((state, becomes), []).append(event)
    lanes = [Lane(row.index(a), row.index(b), tuple(t)) for (a, b), t in ways.items() if a in row and b in row]
    back = sorted((lane for lane in lanes if lane.end < lane.start), key=lambda lane: (lane.start - lane.end, lane))
    skip = sorted((lane for lane in lanes if lane.end > lane.start + 1), key=lambda lane: lane.end - lane.start)
    top = 8 + sum(_height(lane) for lane in back)
    parts: List[str] = []
    level = top
    for number, lane in enumerate(back):
        level -= _height(lane)
        parts += _lane(lane, top, level + len(lane.texts) * LINE + 4, -1, _port(back, number))
    for name in row:
        parts.append(_box(name, _left(row.index(name)), top))
    for lane in lanes:
        if lane.end == lane.start + 1:
            parts += _straight(lane, top + BOX_HEIGHT // 2)
    bottom = level = top + BOX_HEIGHT
    for number, lane in enumerate(skip):
        level += _height(lane)
        parts += _lane(lane, bottom, level, 1, _port(skip, number))
    level += 56
    for name in side:
        parts += _aside(name, row, ways, bottom, level)
        level += BOX_HEIGHT + 32
    width = _left(len(row) - 1) + BOX_WIDTH + 8
    height = level - 24 - BOX_HEIGHT if side else level + 8
    title = "The states of a run and what leads from one to another; the table below says the same."
    return (
        f'<svg class="states" role="img" viewBox="0 0 {width} {height}" width="100%" style="max-width: {width}px" '
        f'font-family="sans-serif" font-size="11"><title>{title}</title>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="currentColor"/></marker></defs>' + "".join(parts) + "</svg>"
    )


def _left(index: int) -> int:
    return 8 + index * (BOX_WIDTH + GAP)


def _height(lane: Lane) -> int:
    return len(lane.texts) * LINE + 16


def _port(lanes: Sequence[Lane], number: int) -> Tuple[int, int]:
    """Where a lane leaves its box and where it comes in, from the left side of each: lanes do not share a place."""
    lane, longer = lanes[number], lanes[number + 1 :]
    outward = sum(other.start == lane.start for other in longer)
    inward = sum(other.end == lane.end for other in longer)
    return BOX_WIDTH - PORT * (1 + outward), PORT * (1 + inward)


def _lane(lane: Lane, edge: int, level: int, side: int, port: Tuple[int, int]) -> List[str]:
    start, end = _left(lane.start) + port[0], _left(lane.end) + port[1]
    parts = [_path(f"M{start} {edge} V{level} H{end} V{edge}")]
    middle = _left(lane.start) - GAP // 2 if side < 0 else (start + end) // 2  # where no other lane goes down
    first = level - 5 - (len(lane.texts) - 1) * LINE
    return parts + [_text(middle, first + LINE * n, text) for n, text in enumerate(lane.texts)]


def _straight(lane: Lane, level: int) -> List[str]:
    start, end = _left(lane.start) + BOX_WIDTH, _left(lane.end)
    parts = [_path(f"M{start} {level} H{end}")]
    first = level - 5 - (len(lane.texts) - 1) * LINE
    return parts + [_text((start + end) // 2, first + LINE * n, text) for n, text in enumerate(lane.texts)]


def _aside(name: str, row: Sequence[str], ways: Dict[Tuple[str, str], List[str]], bottom: int, level: int) -> List[str]:
    """A state beside the row: under the one that leads to it, and the way back from it."""
    above = next(index for index, state in enumerate(row) if (state, name) in ways)
    left = _left(above)
    parts = [_box(name, left, level - BOX_HEIGHT), _path(f"M{left + 30} {bottom} V{level - BOX_HEIGHT}")]
    for n, text in enumerate(ways[(row[above], name)]):
        parts.append(_text(left + 24, bottom + 24 + LINE * n, text, "end"))
    for index, state in enumerate(row):
        for n, text in enumerate(ways.get((name, state), [])):
            end, middle = _left(index) + BOX_WIDTH // 2, level - BOX_HEIGHT // 2
            parts.append(_path(f"M{left} {middle} H{end} V{bottom}"))
            parts.append(_text((left + end) // 2, middle - 5 - LINE * n, text))
    return parts


def _box(name: str, left: int, top: int) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="none" '
        'stroke="currentColor"/>' + _text(left + BOX_WIDTH // 2, top + BOX_HEIGHT // 2 + 4, name, weight="bold")
    )


def _path(shape: str) -> str:
    return f'<path d="{shape}" fill="none" stroke="currentColor" marker-end="url(#tip)"/>'


def _text(x: int, y: int, text: str, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="currentColor">{escape(text)}</text>'
    )
