#!/usr/bin/env python3
"""Man page and completions of kvasir, made of its --help: kvasir.1, kvasir.bash, _kvasir (zsh), kvasir.fish.
usage: scripts/man_pages.py build/release/kvasir DIR"""

import os
import re
import subprocess
import sys

COMMANDS = {
    "serve": "serve the HTTP API",
    "inspect": "show a checkpoint as read, and the memory plan",
    "pull": "download a model of the Hugging Face hub",
    "list": "list the models that were downloaded",
    "rm": "remove a downloaded model",
    "cache": "list, verify or prune the directory of --cache-dir",
    "ready": "exit with 0 if the server on this machine is ready",
    "run-batch": "answer the requests of a file",
    "verify": "recompute what receipts say",
    "replay": "run the requests of a request log again, and compare the bits",
    "bench": "benchmark the engine offline",
    "version": "print the version",
}


def options(text):
    """--help -> [(group, [(flag, value, meaning)])]"""
    groups = []
    for line in text.splitlines():
        flag = re.match(r"  --(\S+) (.+?)(?:  +(.*)|$)", line)
        if line.startswith("Each flag"):
            break
        if re.match(r"[A-Z][^:]*$", line):
            groups.append((line, []))
        elif flag:  # one space alone may separate a long value from its meaning
            value, _, rest = flag[2].partition(" ")
            groups[-1][1].append([flag[1], value, rest or flag[3] or ""])
        elif line.startswith(" " * 20) and groups:
            groups[-1][1][-1][2] += " " + line.strip()
    return [(g, [(f, v, m.strip()) for f, v, m in rows]) for g, rows in groups]


def choices(value):
    return [v for v in value.split("|") if v and v == v.lower()] if "|" in value else []


def is_path(value):
    return value.split("|")[0] in ("DIR", "FILE", "MODEL")


def man(groups, version):
    def text(s):
        return s.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")

    out = [
        f'.TH KVASIR 1 "" "{version}"',
        ".SH NAME",
        "kvasir \\- OpenAI\\-compatible inference server for vision\\-language models",
        ".SH SYNOPSIS",
    ]
    for usage in (
        "serve [MODEL] [flags]",
        "serve A NAME=B ... [flags]",
        "inspect [MODEL] [flags]",
        "pull ORG/NAME[@REVISION][:FILE.gguf] ...",
        "list",
        "rm ORG/NAME[@REVISION] ...",
        "cache ls|verify|prune",
        "run-batch -i IN -o OUT --model MODEL [flags]",
        "verify RECEIPT ... --model MODEL [flags]",
        "replay LOG MODEL [flags]",
        "ready [PORT]",
        "bench --help",
        "version",
    ):
        name, _, rest = usage.partition(" ")
        out += [f".B kvasir {name}", text(rest), ".br"]
    out += [
        ".SH DESCRIPTION",
        "Deterministic, batch\\-invariant inference: the same request and seed give the same output.",
        "MODEL is a checkpoint directory, a GGUF file, or a model of the Hugging Face hub, downloaded",
        "into its cache (HF_HOME). Without one, a small demo model is served.",
        ".SH COMMANDS",
    ]
    for name, meaning in COMMANDS.items():
        out += [".TP", f".B {name}", text(meaning)]
    out += [
        ".SH OPTIONS",
        "Each is also an environment variable (KVASIR_MAX_CONTEXT) and a line of the file of",
        "\\-\\-config (max\\-context = 4096).",
    ]
    for group, rows in groups:
        out.append(f".SS {text(group)}")
        for flag, value, meaning in rows:
            out += [".TP", f'.BI \\-\\-{text(flag)} " {text(value)}"', text(meaning)]
    out += [
        ".SH SIGNALS",
        ".TP",
        ".B SIGTERM",
        "Stops being ready, finishes what runs, and ends.",
        ".TP",
        ".B SIGHUP",
        "Reads API keys and certificate again, and reopens the log file.",
        ".SH EXIT STATUS",
        "0 after a signal, 2 for a wrong flag or command, 1 for any other error.",
        ".SH ENVIRONMENT",
        ".TP",
        ".B HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE",
        "As in huggingface_hub.",
    ]
    return "\n".join(out) + "\n"


def bash(rows):
    cases = "".join(f"        --{f}) words=\"{' '.join(choices(v))}\" ;;\n" for f, v, _ in rows if choices(v))
    paths = "|".join("--" + f for f, v, _ in rows if is_path(v))
    flags = " ".join("--" + f for f, _, _ in rows)
    return f"""# bash completion of kvasir
_kvasir() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words=""
    [ "$cur" = "=" ] && cur=""
    [ "$prev" = "=" ] && prev=${{COMP_WORDS[COMP_CWORD-2]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{' '.join(COMMANDS)}"
    else
        case $prev in
{cases}        {paths}) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
        *)
            case ${{COMP_WORDS[1]}} in
            serve | inspect) words="{flags}" ;;
            rm) words=$(kvasir list 2>/dev/null | sed -n '2,$s/ .*//p') ;;
            esac ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}
complete -o default -F _kvasir kvasir
"""


def zsh(rows):
    def quote(s):
        return re.sub(r"([\[\]:\\])", r"\\\1", s).replace("'", "'\\''")

    lines = []
    for flag, value, meaning in rows:
        action = f"({' '.join(choices(value))})" if choices(value) else "_files" if is_path(value) else ""
        lines.append(f"        '--{flag}=[{quote(meaning)}]:{quote(value.lower())}:{action}' \\\n")
    commands = " ".join(f"'{c}:{m}'" for c, m in COMMANDS.items())
    return f"""#compdef kvasir
_kvasir() {{
    local -a commands=({commands})
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $words[2] in
    serve | inspect)
        _arguments \\
{''.join(lines)}        '1::model:_files' ;;
    esac
}}
compdef _kvasir kvasir
"""


def fish(rows):
    out = ["# fish completion of kvasir", "complete -c kvasir -f"]
    for name, meaning in COMMANDS.items():
        out.append(f"complete -c kvasir -n __fish_use_subcommand -a {name} -d '{meaning}'")
    for flag, value, meaning in rows:
        arg = f"-xa '{' '.join(choices(value))}'" if choices(value) else "-rF" if is_path(value) else "-x"
        meaning = meaning.replace("\\", "\\\\").replace("'", "\\'")
        out.append(
            f"complete -c kvasir -n '__fish_seen_subcommand_from serve inspect' -l {flag} {arg} "
            f"-d '{meaning}'"
        )
    return "\n".join(out) + "\n"


def main(binary, folder):
    def said(*args):
        return subprocess.run([binary, *args], capture_output=True, text=True, check=True).stdout

    groups = options(said("serve", "--help"))
    rows = [r for _, rows in groups for r in rows]
    os.makedirs(folder, exist_ok=True)
    for name, text in (
        ("kvasir.1", man(groups, said("version").split("(")[0].strip())),
        ("kvasir.bash", bash(rows)),
        ("_kvasir", zsh(rows)),
        ("kvasir.fish", fish(rows)),
    ):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
