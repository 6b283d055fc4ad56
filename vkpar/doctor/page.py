"""A visit as one page of HTML that needs nothing else: for reading, and for attaching to a report."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from vkpar.doctor import report, table
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding

INVITATION: Final = (
    "attach it to an issue of vkpar's repository (the form 'My rig'); it holds no serial numbers, names of users or "
    "machines, or folders of users"
)
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5c6a78; --line: #d9dfe5; --paper: #fff; --band: #f4f6f8;
  --ok: #12805c; --failed: #c0262d; --skipped: #77828e; --warm: #fdecea;
  --native: #0072b2; --peer: #009e73; --bridged: #b87503; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b3; --line: #35404b; --paper: #161b20;
  --band: #1e252c; --ok: #4cc38a; --failed: #ff6369; --skipped: #8b97a3; --warm: #3b1d1f;
  --native: #56b4e9; --peer: #2fbf95;
  --bridged: #e69f00; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1080px; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 10px; } p { margin: 6px 0; }
.soft { color: var(--soft); } .verdict { font-size: 17px; font-weight: 600; margin-top: 14px; }
.ok { color: var(--ok); } .failed { color: var(--failed); } .skipped { color: var(--skipped); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; font-size: 13px; color: var(--soft); }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.mark { white-space: nowrap; font-weight: 600; width: 1%; } td.name { white-space: nowrap; width: 1%; }
td.time { text-align: right; white-space: nowrap; color: var(--soft); width: 1%; }
tr.group td { background: var(--band); font-weight: 600; padding: 6px 10px; }
.bad { background: var(--warm); border-left: 4px solid var(--failed); padding: 8px 14px; margin: 8px 0; }
.fix { font-weight: 600; } td.found { overflow-wrap: anywhere; }
table.grid { width: auto; } table.grid td, table.grid th { padding: 5px 16px 5px 0; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
@media (max-width: 600px) { body { padding: 16px 12px 40px; } td.time { display: none; }
  td.name { white-space: normal; } }
@media print { body { max-width: none; } tr { break-inside: avoid; } }
"""
_FACTS: Final = {
    "driver": "driver",
    "vulkan": "Vulkan",
    "type": "type",
    "ids": "vendor:device",
    "pci_address": "PCI address",
    "subgroup_size": "subgroup",
}
_WORDS: Final = {OK: "ok", FAILED: "failed", SKIPPED: "-"}


def page(visit: Mapping[str, Any]) -> str:
    """Return the page of a visit's document, from which private words were taken out."""
    parts = [
        _head(visit),
        *_bad([check for check in visit["checks"] if check["state"] == FAILED]),
        *_ways([check for check in visit["checks"] if check["data"].get("paths")]),
        *_kernels([check for check in visit["checks"] if check["section"] == table.KERNELS]),
        *_rig(visit),
        "<h2>Every check</h2>",
        _checks(visit["checks"]),
        f"<h2>Reports are welcome</h2><p>This page is one file: {escape(INVITATION)}.</p>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>vkpar doctor</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _head(visit: Mapping[str, Any]) -> str:
    state = OK if visit["ok"] else FAILED
    system = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    quick = ", quick" if visit["quick"] else ""
    verdict = "All that was checked is right." if visit["ok"] else "Something is to be mended."
    return (
        f"<h1>vkpar doctor</h1><p class=soft>vkpar {escape(visit['vkpar'])}{quick} &middot; {escape(system)} &middot; "
        f'{time.strftime("%Y-%m-%d")}</p><p class="verdict {state}">{verdict} '
        f"<span class=soft>{escape(report.summary(visit))}</span></p>"
    )


def _bad(failed: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if failed:
        yield "<h2>What to mend</h2>"
    for check in failed:
        fix = f"<br><span class=fix>&rarr; {escape(check['fix'])}</span>" if check["fix"] else ""
        subject = f" <span class=soft>{escape(check['subject'])}</span>" if check["subject"] else ""
        yield f"<div class=bad><b>{escape(check['check'])}</b>{subject}<br>{escape(check['found'])}{fix}</div>"


def _grid(titles: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "grid") -> str:
    """Return a table of cells that are HTML."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class=scroll><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ways(checks: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield what each device is, and which of vkpar's ways it takes."""
    if not checks:
        return
    devices = [check["data"]["device"] for check in checks]
    names = [device["name"] for device in devices]
    yield "<h2>Devices</h2>"
    rows = [(title, *(escape(str(device[key] or "-")) for device in devices)) for key, title in _FACTS.items()]
    rows.append(("memory", *(f"{device['memory_bytes'] / 2**30:.1f} GiB" for device in devices)))
    yield _grid(("", *names), rows)
    yield "<h2>What vkpar takes of them</h2>"
    rows = []
    for number, path in enumerate(checks[0]["data"]["paths"]):
        cells = []
        for check in checks:
            each = check["data"]["paths"][number]
            instead = f"<span class=soft>{escape(each['instead'])}<br>(lacks {escape(each['lacks'])})</span>"
            cells.append(instead if each["lacks"] else '<span class="ok">yes</span>')
        rows.append((escape(path["path"]), *cells))
    yield _grid(("", *names), rows)


def _kernels(checks: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a picture of how far each family's float32 is off, device by device."""
    if not checks:
        return
    subjects = list(dict.fromkeys(check["subject"] for check in checks))
    names = list(dict.fromkeys(check["check"] for check in checks))
    found = {(check["check"], check["subject"]): check for check in checks}
    yield "<h2>Kernels against float64</h2>"
    yield "<p class=soft>The largest error of float32 as a share of its derived bound.</p>"
    rows = []
    for name in names:
        cells = [_bar(found[name, subject]) if (name, subject) in found else "-" for subject in subjects]
        rows.append((f"<b>{escape(name)}</b> <span class=soft>{escape(table.BY_NAME[name].title)}</span>", *cells))
    yield _grid(("", *subjects), rows)


def _bar(check: Mapping[str, Any]) -> str:
    if check["state"] != OK:
        return f'<b class="{check["state"]}">{_WORDS[check["state"]]}</b>'
    worst = min(check["data"]["worst"], 1.0)
    words = "exact" if not worst else f"{worst:.0%}" if worst >= 0.01 else "under 1%"
    return (
        f'<svg width="150" height="18" role="img" aria-label="{words}"><rect y="4" width="80" height="10" rx="2" '
        f'fill="var(--line)"/><rect y="4" width="{80 * worst:.1f}" height="10" rx="2" fill="var(--ok)"/>'
        f'<text x="88" y="14">{words}</text></svg>'
    )


def _rig(visit: Mapping[str, Any]) -> Iterable[str]:
    """Yield how each rank's data reaches each other rank."""
    ranks = [check for check in visit["checks"] if check["check"] == "links" and "links" in check["data"]]
    if not ranks:
        return
    names = [device["name"] for device in visit["devices"]]
    names = names if len(names) == len(ranks) else names * len(ranks)
    rows = []
    for rank, (name, check) in enumerate(zip(names, ranks, strict=False)):
        links = {link["dst"]: link for link in check["data"]["links"]}
        cells = [_link(links[dst]) if dst in links else "-" for dst in range(len(ranks))]
        rows.append((f"<b>{rank}</b> {escape(name)}", escape(check["data"]["transport"]), *cells))
    yield "<h2>Links</h2><p class=soft>From a row's rank to a column's.</p>"
    yield _grid(("rank", "transport", *(f"to {dst}" for dst in range(len(ranks)))), rows)


def _link(link: Mapping[str, Any]) -> str:
    kind = link["kind"] if link["ok"] else FAILED
    return f'<b style="color: var(--{kind})">{escape(link["kind"])}{"" if link["ok"] else ", wrong"}</b>'


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows, heading = [], ""
    for check in checks:
        finding = Finding(**check)
        if report.heading_of(finding) != heading:
            heading = report.heading_of(finding)
            rows.append(f"<tr class=group><td colspan=4>{escape(heading)}</td></tr>")
        subject = report.subject_of(finding)
        found = f"{subject}: {check['found']}" if subject else check["found"]
        if check["state"] == FAILED and check["fix"]:
            fix = f"<br><span class=fix>&rarr; {escape(check['fix'])}</span>"
        else:
            fix = ""
        cells = {
            f"mark {check['state']}": _WORDS[check["state"]],
            "name": escape(check["check"]),
            "found": escape(found) + fix,
            "time": f"{check['seconds']:.1f} s",
        }
        rows.append("<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in cells.items()) + "</tr>")
    return f"<div class=scroll><table><tbody>{''.join(rows)}</tbody></table></div>"
