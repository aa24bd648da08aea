"""The XML of `nvidia-smi -q -x`: <nvidia_smi_log> with a <gpu id="..."> for each GPU (nvsmi_device_vNN.dtd). Cut output gives the GPUs
before the cut, and the one that it ends in as far as it goes.
"""

from __future__ import annotations

from fmproto.dumptext import Problems
from fmsched.topology.readers.smi_query_fields import (
    DRIVER_KEYS,
    GPUS_MAX,
    Dump,
    Path,
    Section,
    count,
    driver_of,
    key_of,
    unsaid,
)
from fmsched.topology.readers.xmltext import Element, read_xml


def sections_of(text: str, problems: Problems) -> Dump:
    """What the file says of each GPU. Two logs in one file (nvidia-smi -l) are one: the first value of a field stands."""
    document = read_xml(text, problems)
    sections: dict[str, Section] = {}
    driver, attached, attached_line = "", None, 0
    for root in document.roots:
        tops = root.children if root.tag == "nvidia_smi_log" else [root]
        for top in tops:
            if top.tag == "gpu":
                _gpu(top, sections, problems)
            elif top.tag in DRIVER_KEYS:
                driver = driver or driver_of(top.text)
            elif top.tag == "attached_gpus" and attached is None:
                attached, attached_line = count(top.text), top.line
    first = f"<{document.roots[0].tag}>" if document.roots else "the whole file"
    return Dump(tuple(sections.values()), driver, attached, attached_line, document.cut, first=first)


def _gpu(top: Element, sections: dict[str, Section], problems: Problems) -> None:
    pci = top.get("id")
    if not pci:
        problems.add(top.line, "<gpu>", "found no id; its place in the file numbers it")
    key = pci.lower() or f"line {top.line}"
    if key in sections:
        problems.add(top.line, f"GPU {pci}", "found a second time; only what the first did not say is taken")
    elif len(sections) >= GPUS_MAX:
        problems.add(top.line, f"GPU {pci}", f"found more than {GPUS_MAX} GPUs; this one is not read")
        return
    section = sections.setdefault(key, Section(pci, top.line))
    section.again()
    if top.text and not unsaid(top.text):
        section.add(("gpu",), top.text)  # a lost one may have nothing but a message
    _fill(section, top, ())


def _fill(section: Section, element: Element, path: Path) -> None:
    """All fields below an element; recursion is as deep as xmltext lets elements nest."""
    for child in element.children:
        if child.tag == "mig_devices":
            for device in child.children:
                if device.tag == "mig_device":
                    _fill(section.instance(device.line), device, ())
            continue
        here = (*path, key_of(child.tag))
        if child.children:
            _fill(section, child, here)
        elif child.closed:  # a value that the file ends in may lack its end
            section.add(here, child.text)
