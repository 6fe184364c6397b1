"""What OpenPBS would not accept, or would accept and misunderstand, in a job script."""

import re
import shlex

_FLAGS = {"V", "h"}
_OPTIONS = _FLAGS | set("aAcejJklmMNopPqrRSuvW")
_CHUNK_RESOURCES = {"ncpus", "mpiprocs", "ompthreads", "mem", "ngpus", "host", "vnode", "arch"}
_PLACE = re.compile(r"(free|pack|scatter|vscatter)(:(excl|exclhost|shared))?(:group=\w+)?")
_WALLTIME = re.compile(r"\d+|(\d+:)?[0-5]?\d:[0-5]\d")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")
_ARRAY = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?")
_LONGEST_NAME = 15


def directives(text):
    """Return (line number, option, value) of each `#PBS` line that PBS reads, and the numbers of those it does not."""
    read, unread, commands = [], [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#PBS"):
            if commands:
                unread.append(number)
                continue
            words = shlex.split(line.removeprefix("#PBS"))
            option = words[0].removeprefix("-") if words and words[0].startswith("-") else ""
            read.append((number, option, words[1:]))
        elif line.strip() and not line.startswith("#"):
            commands = True
    return read, unread


def nodes(text):
    """Return on how many hosts the job is: its chunks, which `place=scatter` parts."""
    values = [value for _, option, values in directives(text)[0] if option == "l" for value in values]
    (select,) = [value.removeprefix("select=") for value in values if value.startswith("select=")]
    return sum(int(chunk.partition(":")[0]) for chunk in select.split("+"))


def mistakes(text, sourced="", points=None):
    """List what is wrong with a job script.

    Args:
        text: the script.
        sourced: the files that it sources, one after another.
        points: how many points its experiment has, if that is known.
    """
    found = []
    if not text.startswith("#!/bin/bash\n"):
        found.append("line 1: not #!/bin/bash")
    if "\r" in text:
        found.append("lines end as under DOS")
    read, unread = directives(text)
    found += [f"line {number}: PBS reads no directive after the first command" for number in unread]
    found += [
        f"line {number}: looks like a directive, but PBS wants #PBS at the beginning"
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*#\s*pbs\s+-", line, re.IGNORECASE) and not line.startswith("#PBS")
    ]
    found += [f"line {number}: {what}" for number, option, values in read for what in _directive(option, values)]
    given = [key for _, option, values in read for key in _keys(option, values)]
    found += [f"{key} is given twice" for key in sorted({key for key in given if given.count(key) > 1})]
    found += [f"{key} is missing" for key in ("-N", "-l select", "-l place", "-l walltime") if key not in given]
    if {"-l select", "-l nodes"} <= set(given) or {"-l select", "-l ncpus"} <= set(given):
        found.append("select does not go together with nodes or ncpus for the whole job")
    if "-l place=scatter" not in [f"-l {value}" for _, _, values in read for value in values]:
        found.append("place=scatter is missing: PBS would pack all chunks on one host")
    return [*found, *_log(text, given), *_arrays(text, points), *_body(f"{text}\n{sourced}")]


def _keys(option, values):
    return [f"-l {value.partition('=')[0]}" for value in values] if option == "l" else [f"-{option}"]


def _directive(option, values):
    if option not in _OPTIONS or (len(option) != 1):
        yield f"{option!r} is no option that qsub takes from a script"
    elif len(values) != (option not in _FLAGS):
        yield f"-{option} takes {'one value' if option not in _FLAGS else 'no value'}, not {values}"
    elif option == "l":
        yield from _resource(values[0])
    elif option == "N" and not (_NAME.fullmatch(values[0]) and len(values[0]) <= _LONGEST_NAME):
        yield f"{values[0]!r} is no job name of at most {_LONGEST_NAME} characters"
    elif option == "j" and values[0] not in ("oe", "eo", "n"):
        yield f"-j is oe, eo or n, not {values[0]}"
    elif option == "S" and not values[0].startswith("/"):
        yield f"-S wants an absolute path, not {values[0]}"
    elif option == "J" and not _ARRAY.fullmatch(values[0]):
        yield f"{values[0]!r} is no array: FIRST-LAST, FIRST-LAST:STEP, and %LIMIT after it"


def _resource(text):
    key, equals, value = text.partition("=")
    if not equals:
        yield f"{text!r} is no resource: KEY=VALUE"
    elif key == "walltime" and not _WALLTIME.fullmatch(value):
        yield f"{value!r} is no walltime: HH:MM:SS"
    elif key == "place" and not _PLACE.fullmatch(value):
        yield f"{value!r} is no place: free, pack, scatter or vscatter"
    elif key == "select":
        for chunk in value.split("+"):
            count, *resources = chunk.split(":")
            if not (count.isdigit() and int(count)):
                yield f"{chunk!r} begins with no number of chunks"
            for resource in resources:
                name, _, amount = resource.partition("=")
                if name not in _CHUNK_RESOURCES or not amount:
                    yield f"{resource!r} is no resource of a chunk; known: {', '.join(sorted(_CHUNK_RESOURCES))}"


def _log(text, given):
    """Provenance takes a new file of the clone for a change of the source; PBS names logs in a folder by their job."""
    folder = re.search(r"^#PBS -o (\S+)/$", text, re.MULTILINE)
    if not folder or "-j" not in given:
        yield "its log would be a new file of the clone: -j oe, and -o with a folder, which ends in a slash"
    elif f'mkdir -p "${{PBS_O_WORKDIR:-$HPCPS_HOME}}/{folder[1]}"' not in text:
        yield "nothing makes the folder of its log, which PBS does not"


def _arrays(text, points):
    """Arrays are in no directive here, but in the comments that say how to submit."""
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for given in re.findall(r"-J (\S+?)(?=[):,]*(?:\s|$))", comments):
        array = _ARRAY.fullmatch(given)
        if not array:
            yield f"{given!r} is no array: FIRST-LAST, and %LIMIT after it"
        elif points is not None and (int(array[1]), int(array[2])) != (0, points - 1):
            yield f"the array {given} does not have the experiment's points 0 to {points - 1}"


def _body(text):
    if "HPCPS_HOME=${HPCPS_HOME:-${PBS_O_WORKDIR:" not in text or '\ncd "$HPCPS_HOME"\n' not in text:
        yield "it stays in $HOME, where PBS starts it, instead of going where it was submitted"
    traps = re.findall(r"^\s*trap (['\"])(.*?)\1 (.*TERM.*)$", text, re.MULTILINE)
    ends = [action for _, action, _ in traps if action]
    if not any(re.search(r"\b(exit|stop) [1-9]", action) for action in ends):
        yield "TERM, which PBS sends at the walltime, is not trapped with a status of its own"
    if any(re.search(r"\bexit( 0)?\s*(;|$)", action) for action in ends):
        yield "a script that traps TERM must not end with 0: the job would count as finished"
    bare = re.sub(r"^\s*#.*$|'[^']*'|\"[^\"]*\"", "", text, flags=re.MULTILINE)
    for target in re.findall(r"(?<![<0-9&])>>?\s*([\w./-]+)", bare):
        if target != "/dev/null":
            yield f"two jobs would both write {target}: name it after the job"
