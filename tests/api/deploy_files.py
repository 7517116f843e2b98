"""The files of scripts/deploy for tests, with the tests' addresses."""

import functools
import json
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "scripts/deploy")


@functools.lru_cache(maxsize=None)
def yaml_documents(path):
    """All documents of a YAML file. PyYAML is a package of the system, which another Python may lack."""
    try:
        import yaml

        with open(path) as f:
            return list(yaml.safe_load_all(f))
    except ImportError:
        script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
        with open(path) as f:
            run = subprocess.run(["/usr/bin/python3", "-c", script], stdin=f, capture_output=True, text=True)
        if run.returncode:
            raise AssertionError(f"{path}: {run.stderr[-500:]}") from None
        return json.loads(run.stdout)


def compose():
    return yaml_documents(os.path.join(DEPLOY, "compose.yaml"))[0]


def haproxy_env(listen, a, b):
    """The balancer's environment of compose.yaml, with these addresses."""
    names = {"KVASIR_LISTEN": listen, "KVASIR_A": a, "KVASIR_B": b}
    assert set(compose()["services"]["balancer"]["environment"]) == set(names)
    return names


def nginx_text(listen, a, b, folder):
    """nginx.conf with these addresses, its files in `folder`."""
    with open(os.path.join(DEPLOY, "nginx.conf")) as f:
        text = f.read()
    for old, new, count in (
        ("listen 8080;", f"listen {listen};", 1),
        ("kvasir-a:8000", a, 2),
        ("kvasir-b:8000", b, 2),
        ("/tmp/kvasir-nginx.pid", f"{folder}/nginx.pid", 1),
    ):
        assert text.count(old) == count, (old, text.count(old))
        text = text.replace(old, new)
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return re.sub(r"^http \{\n", lambda m: m[0] + temporary, text, flags=re.M)
