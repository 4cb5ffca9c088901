"""What scripts/gpu's tests and sanitizers found, as one JSON file.

    python3 gpu_checks.py FOLDER

reads FOLDER/{tests,memcheck,racecheck,initcheck}.PART.{json,log}, GoogleTest's
JSON and what was printed beside it, and writes FOLDER/checks.json.
"""

import json
import re
import sys
import time
from pathlib import Path

from gpu import versions

CHECKS = ("tests", "memcheck", "racecheck", "initcheck")
# "Race reported between Read access at void luna::cuda::kernel<...>(...)+0x10"
KERNEL = re.compile(r"between \w+ access at (?:void )?((?:[\w:]|<unnamed>)+)")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")


def check(folder, name):
    """Counts of a check; None where it was not run. A part that died before
    its end counts as failed, with the last line that it printed."""
    logs = sorted(folder.glob(f"{name}.*.log"))
    if not logs:
        return None
    found = {"passed": 0, "skipped": 0, "failed": []}
    if name != "tests":
        found["errors"] = 0
    for log in logs:
        text = log.read_text(errors="replace")
        if name != "tests":
            summary = SUMMARY.search(text)
            if summary is not None:
                found["errors"] += int(summary[1])
            elif log.with_suffix(".json").is_file():
                found["failed"].append(f"{log.name}: no summary of {name}")
            for kernel in KERNEL.findall(text):
                kernels = found.setdefault("kernels", {})
                kernels[kernel] = kernels.get(kernel, 0) + 1
        results = log.with_suffix(".json")
        if not results.is_file():
            last = text.strip().splitlines()[-1:] or ["nothing printed"]
            found["failed"].append(f"{log.name}: {last[0]}")
            continue
        for suite in json.loads(results.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                if test.get("failures"):
                    title = f"{suite['name']}.{test['name']}"
                    found["failed"].append(title)
                elif test["result"] == "SKIPPED":
                    found["skipped"] += 1
                elif test["result"] == "COMPLETED":
                    found["passed"] += 1
    return found


def main():
    folder = Path(sys.argv[1])
    checks = {name: check(folder, name) for name in CHECKS}
    checks = {name: found for name, found in checks.items() if found}
    result = {
        "format": "luna-gpu-checks/1",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **versions(),
        "checks": checks,
    }
    (folder / "checks.json").write_text(json.dumps(result, indent=1) + "\n")
    good = True
    for name, found in checks.items():
        print(
            f"{name}: {found['passed']} passed, {len(found['failed'])} failed, "
            f"{found['skipped']} skipped"
            + (f", {found['errors']} errors" if "errors" in found else "")
        )
        for line in found["failed"][:20]:
            print(f"  {line}")
        for kernel, reports in found.get("kernels", {}).items():
            print(f"  {reports} reports of {kernel}")
        good = good and not found["failed"] and not found.get("errors")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
