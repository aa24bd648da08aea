"""XML that tools printed, read as far as it goes: a cut file still gives the elements before the cut. Not a general XML parser. No DTD is
read and no entity expanded but the five of XML itself and character numbers, so that a hostile file costs one pass over its text.

What of XML is kept: elements, attributes, character data, CDATA. What is skipped: comments, processing instructions, the document type
(https://www.w3.org/TR/xml/). Text outside the root (a shell prompt, a tool's warnings) is skipped too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fmproto.dumptext import LINE_MAX, Problems, clean

DEPTH_MAX = 128  # real dumps: nvidia-smi -q -x 8, an NCCL topology behind many PCI switches below 16; NCCL allows 256
ELEMENTS_MAX = 200_000  # nvidia-smi -q -x of 16 GPUs: 20,000
ATTRIBUTES_MAX = 64  # of one element; NCCL itself allows 16
TEXT_MAX = 4_096  # characters of one element's own text
MALFORMED_MAX = 10_000  # tags that are stepped over; a file with more is no XML
CHARACTERS_MAX = 32 << 20  # nvidia-smi -q -x of 16 GPUs: below 1 MB
_VALUE_MAX = 4_096

_NAME = r"[A-Za-z_:][\w:.-]{0,127}"
_OPEN = re.compile(rf"<({_NAME})")
_CLOSE = re.compile(rf"</({_NAME})\s*>")
# A raw "<" is not allowed in a value; stopping there keeps the search for the end quote within one tag.
_ATTRIBUTE = re.compile(rf"\s*({_NAME})\s*=\s*(?:\"([^\"<]{{0,{_VALUE_MAX}}})\"|'([^'<]{{0,{_VALUE_MAX}}})')")
_TAG_END = re.compile(r"\s*(/?)>")
_DOCTYPE_STOP = re.compile(r"[\[>\"']")
_REFERENCE = re.compile(r"&(#x[0-9A-Fa-f]{1,6}|#[0-9]{1,7}|[A-Za-z][\w.-]{0,63});")
_KNOWN = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_UNICODE_MAX = 0x10FFFF


@dataclass(slots=True)
class Element:
    """`text` is its own character data, stripped; `closed` is False where the file ended inside it."""

    tag: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)
    closed: bool = False

    def get(self, name: str) -> str:
        """An attribute, stripped; empty where the element lacks it."""
        return self.attributes.get(name, "").strip()

    def walk(self) -> Iterator[Element]:
        """It and all elements below it, in the file's order."""
        waiting = [self]
        while waiting:  # ends: a tree, and each element is taken once
            element = waiting.pop()
            yield element
            waiting.extend(reversed(element.children))


@dataclass(frozen=True, slots=True)
class Document:
    """`roots` are the elements that stand in no other: one in a good file. `cut`: the file ends inside an element or a tag."""

    roots: tuple[Element, ...]
    cut: bool


def read_xml(text: str, problems: Problems) -> Document:
    """The elements of a text; what is malformed is a problem and stepped over. Linear in the text's length. Never raises."""
    if len(text) > CHARACTERS_MAX:
        problems.add(0, f"{len(text):,} characters", f"only the first {CHARACTERS_MAX:,} are read")
        text = text[:CHARACTERS_MAX]
    long = next((number for number, line in enumerate(text.split("\n"), 1) if len(line) > LINE_MAX), 0)
    if long:
        problems.add(long, "a line", f"found more than {LINE_MAX:,} characters in a line; tools print far shorter ones")
    return _Reader(clean(text.replace("\r\n", "\n").replace("\r", "\n")), problems).read()


class _Reader:
    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.problems = problems
        self.at = 0
        self.line = 1
        self.roots: list[Element] = []
        self.stack: list[Element] = []
        self.too_deep = 0  # elements open below DEPTH_MAX, which are not kept
        self.count = 0
        self.malformed = 0
        self.cut = False
        self.said: set[str] = set()  # what is told once a file

    def read(self) -> Document:
        while not self.cut:  # ends: every step moves on in the text, or sets cut
            found = self.text.find("<", self.at)
            if found < 0:
                self._data(self.text[self.at :][:TEXT_MAX])
                break
            self._data(self.text[self.at : min(found, self.at + TEXT_MAX)])
            self._move(found)
            self._markup()
        if self.stack:
            self.cut = True
        if self.cut:
            where = self.stack[-1] if self.stack else None
            self.problems.add(
                where.line if where else self.line,
                f"<{where.tag}>" if where else "the end of the file",
                "the file ends inside it: what comes before is read",
            )
        return Document(tuple(self.roots), self.cut)

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _once(self, what: str, why: str) -> None:
        if why not in self.said:
            self.said.add(why)
            self.problems.add(self.line, what, why)

    def _markup(self) -> None:
        """One piece of markup at `at`, where a "<" is."""
        text, at = self.text, self.at
        if text.startswith("<!--", at):
            self._skip_past("-->", at + 4)
        elif text.startswith("<![CDATA[", at):
            end = text.find("]]>", at)
            self._data(text[at + 9 : end if end >= 0 else None][:TEXT_MAX], raw=True)
            self._skip_past("]]>", at + 9)
        elif text.startswith("<?", at):
            self._skip_past("?>", at + 2)
        elif text.startswith("<!", at):
            self._document_type()
        elif text.startswith("</", at):
            self._close()
        else:
            self._open()

    def _skip_past(self, mark: str, start: int) -> None:
        end = self.text.find(mark, start)
        if end < 0:
            self.cut = True  # an unterminated comment hides all that follows
        else:
            self._move(end + len(mark))

    def _document_type(self) -> None:
        """Skips <!DOCTYPE ...>, with what stands in brackets: entities are never declared here."""
        at = self.at + 2
        for _ in range(16):  # quotes and brackets of a document type: a handful
            found = _DOCTYPE_STOP.search(self.text, at)
            if found is None:
                self.cut = True
                return
            if found[0] == ">":
                self._move(found.end())
                return
            if found[0] == "[":
                self._once("a document type with declarations", "declarations (entities among them) are not read")
            at = self.text.find("]" if found[0] == "[" else found[0], found.end()) + 1
            if at == 0:
                self.cut = True
                return
        self.cut = True

    def _close(self) -> None:
        match = _CLOSE.match(self.text, self.at)
        if match is None:
            self._malformed("</")
            return
        self._move(match.end())
        if self.too_deep:
            self.too_deep -= 1
            return
        depth = next((i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i].tag == match[1]), -1)
        if depth < 0:
            self._once(f"</{match[1]}>", "found the end of an element that is not open")
            self._bounded()
            return
        if depth < len(self.stack) - 1:
            self._once(f"<{self.stack[-1].tag}>", f"found no end of it before </{match[1]}>")
        self.stack[depth].closed = True
        del self.stack[depth:]

    def _open(self) -> None:
        match = _OPEN.match(self.text, self.at)
        if match is None:
            self._malformed("<")
            return
        element, at = Element(match[1], self.line), match.end()
        for _ in range(ATTRIBUTES_MAX):
            pair = _ATTRIBUTE.match(self.text, at)
            if pair is None:
                break
            value = pair[2] if pair[2] is not None else pair[3]
            element.attributes.setdefault(pair[1], self._resolved(value))
            at = pair.end()
        end = _TAG_END.match(self.text, at)
        if end is None:
            if self.text.find("<", at) < 0 and self.text.find(">", at) < 0:
                self.cut = True  # the file ends inside this tag
                return
            self._malformed(f"<{match[1]}")
            return
        self._move(end.end())
        self._add(element, opens=not end[1])

    def _malformed(self, what: str) -> None:
        self._once(what, "found a tag that is not well formed; it is stepped over")
        self.at += 1
        self._bounded()

    def _bounded(self) -> None:
        self.malformed += 1
        if self.malformed > MALFORMED_MAX:
            self._once("tags", f"found more than {MALFORMED_MAX:,} that are not well formed; the rest is not read")
            self.cut = True

    def _add(self, element: Element, opens: bool) -> None:
        self.count += 1
        if self.count > ELEMENTS_MAX:
            self._once(f"<{element.tag}>", f"found more than {ELEMENTS_MAX:,} elements; the rest is not read")
            self.cut = True
            return
        if self.too_deep or len(self.stack) >= DEPTH_MAX:
            self._once(f"<{element.tag}>", f"found elements nested deeper than {DEPTH_MAX}; they are not read")
            self.too_deep += opens
            return
        (self.stack[-1].children if self.stack else self.roots).append(element)
        if opens:
            self.stack.append(element)
        else:
            element.closed = True

    def _data(self, data: str, raw: bool = False) -> None:
        if not self.stack or self.too_deep or not data or data.isspace():
            return
        element = self.stack[-1]
        if len(element.text) < TEXT_MAX:
            more = data.strip() if raw else self._resolved(data).strip()
            element.text = f"{element.text} {more}".strip()[:TEXT_MAX]

    def _resolved(self, data: str) -> str:
        return _REFERENCE.sub(self._reference, data) if "&" in data else data

    def _reference(self, match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("#"):
            number = int(name[2:], 16) if name[1] == "x" else int(name[1:])
            return clean(chr(number)) if number <= _UNICODE_MAX else "\ufffd"
        if name not in _KNOWN:
            self._once(match[0], "entities are not expanded, but for lt, gt, amp, quot and apos")
        return _KNOWN.get(name, match[0])
