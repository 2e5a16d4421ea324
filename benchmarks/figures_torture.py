"""The figures of `make torture`, from results/torture/NAME.json."""

from recorded import RESULTS, read


def torture() -> str:
    """docs/troubleshooting.md: what each program of tests/torture tried, and what followed."""
    rows = ["| tried | how often | what followed | lost or wrong | minutes |", "|---|--:|---|--:|--:|"]
    for name, row in ROWS.items():
        if (RESULTS / "torture" / f"{name}.json").exists():
            found = read(f"torture/{name}")
            wrong = found.get("lost or wrong", found.get("lost"))
            rows.append(f"| {' | '.join(row(found))} | {wrong} | {found['seconds'] / 60:.0f} |")
    return "\n".join(rows)


def crash_states(found: dict) -> tuple[str, str, str]:
    """Return the first cells of the row of crash_states.py."""
    what = "a power cut after each file operation of a stage: every state in which the disk may be then"
    refused = found["refused by a reader"]
    return what, f"{found['states']:,} states", f"files are whole, or refused in one sentence ({refused:,})"


def failing_calls(found: dict) -> tuple[str, str, str]:
    """Return the first cells of the row of failing_calls.py."""
    what = "a call of the system that fails in a stage (full disk, I/O error, too many open files, short write, …)"
    followed = f"{found['unnoticed']:,} stages gave the right bytes, {found['refused']:,} ended in one sentence"
    return what, f"{found['faults']:,} faults of {found['calls']:,} calls", followed


def torn_files(found: dict, *names: str) -> str:
    """Return the end of a cell: which files DVC left torn, and how often; nothing if none."""
    torn = [f"`{name}` ({found[f'torn {name}']:,})" for name in names if found.get(f"torn {name}")]
    return f"; DVC left files torn, as above: {', '.join(torn)}" if torn else ""


def signal_moments(found: dict) -> tuple[str, str, str]:
    """Return the first cells of the row of signal_moments.py."""
    what = "SIGINT, SIGTERM or SIGKILL while DVC runs a stage, to DVC, the stage, its shell or all of them"
    followed = f"{found['recorded whole']:,} stages were recorded whole, {found['not recorded']:,} not at all"
    return what, f"{found['moments']:,} moments", followed + torn_files(found, "rwlock", "dvc.lock")


def long_life(found: dict) -> tuple[str, str, str]:
    """Return the first cells of the row of long_life.py."""
    what = "a long run of tiny steps with a state every two seconds; then a clock that jumps and a full disk"
    followed = f"memory grew by {found['MiB per 10,000 steps']} MiB per 10,000 steps; at most {found['open files']}"
    followed += f" open files, {found['files in .runs']} files in `.runs`; the disturbed run has the same bytes"
    return what, f"{found['steps']:,} steps", followed


def concurrency(found: dict) -> tuple[str, str, str]:
    """Return the first cells of the row of concurrency.py."""
    what = "four loops of `dvc exp run --temp` and two workers of the queue, in one repository and with the same seeds"
    often = f"{found['minutes']:g} minutes, {found['killed']:,} processes killed"
    recorded = f"{found['experiments']:,} recorded experiments have the outputs of runs alone"
    recorded += f"; {found['ended without a record']:,} ended without a record"
    return what, often, recorded + torn_files(found, "params.yaml")


def hostile_files() -> str:
    """docs/security.md: how many changed files were read, and what followed."""
    if not (RESULTS / "torture" / "hostile_files.json").exists():
        return ""
    found = read("torture/hostile_files")
    return (
        f"Of {found['inputs']:,} changed inputs of {found['readers']} readers, {found['refused']:,} were refused and "
        f"{found['read']:,} were read; {found['lost']} did anything else ({found['seconds'] / 60:.0f} minutes on "
        f"{found['machine']['cores']} cores of an {found['machine']['processor']})."
    )


ROWS = {each.__name__: each for each in (crash_states, failing_calls, signal_moments, concurrency, long_life)}
FRAGMENTS = {"torture": torture, "hostile-files": hostile_files}
