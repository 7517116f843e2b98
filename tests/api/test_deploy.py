"""The files of scripts/deploy and the Dockerfiles, as far as they can be checked without a cluster or a
builder (scripts/container.sh builds and runs the image; test_balancers.py runs both balancers):
python3 test_deploy.py [--binary B]"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from deploy_files import DEPLOY, ROOT, compose, haproxy_env, nginx_text, yaml_documents  # noqa: E402
from harness import Checks, Server, arguments, wait_until  # noqa: E402

check = Checks()
LAST_BYTES = 2  # seconds that the server gives them after --drain-timeout
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def read(name):
    with open(os.path.join(ROOT, name)) as f:
        return f.read()


def run(*command, env=None):
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    return run.returncode, run.stdout + run.stderr


def yaml_files(args):
    files = glob.glob(os.path.join(DEPLOY, "*.yaml"))
    check.true("there are YAML files", len(files) >= 5, files)
    for path in files:
        documents = [d for d in yaml_documents(path) if d is not None]
        check.true(f"{os.path.basename(path)} says something", documents)
        for d in documents:
            if "kind" in d:
                check.true(f"{path}: {d['kind']} has a version", d.get("apiVersion"))
                check.true(f"{path}: {d['kind']} has a name", "kust" in path or d["metadata"].get("name"))


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def compose_file(args):
    services = compose()["services"]
    for name in ("kvasir-a", "kvasir-b"):
        env = services[name]["environment"]
        end = int(env["KVASIR_SHUTDOWN_DELAY"]) + int(env["KVASIR_DRAIN_TIMEOUT"]) + LAST_BYTES
        check.true(f"{name} has time to drain", seconds(services[name]["stop_grace_period"]) > end)
    balancer = services["balancer"]["environment"]
    check.equal("the balancer's servers", {balancer["KVASIR_A"], balancer["KVASIR_B"]},
                {"kvasir-a:8000", "kvasir-b:8000"})
    for volume in services["balancer"]["volumes"]:
        check.true(f"{volume} is there", os.path.exists(os.path.join(DEPLOY, volume.split(":")[0])))


def kubernetes(args):
    objects = yaml_documents(os.path.join(DEPLOY, "kubernetes.yaml"))
    more = yaml_documents(os.path.join(DEPLOY, "inference-gateway.yaml"))
    pods = [o["spec"]["template"] for o in objects + more if o["kind"] in ("StatefulSet", "Deployment")]
    labels = [p["metadata"]["labels"] for p in pods]
    by = {(o["kind"], o["metadata"]["name"]): o["spec"] for o in objects + more if "spec" in o}
    for (kind, name), spec in by.items():
        selector = spec.get("selector") or {}
        selector = selector.get("matchLabels", selector)
        if kind in ("Service", "PodDisruptionBudget", "InferencePool", "StatefulSet", "Deployment"):
            hits = [p for p in pods if selector.items() <= p["metadata"]["labels"].items()]
            check.true(f"{kind} {name} selects pods of one kind", selector and len(hits) == 1, labels)
        if kind == "Service":
            names = [p["name"] for c in hits[0]["spec"]["containers"] for p in c["ports"]]
            check.true(f"Service {name}: ports", all(p["targetPort"] in names for p in spec["ports"]), names)
    pod = by["StatefulSet", "kvasir"]["template"]["spec"]
    server = pod["containers"][0]
    env = {e["name"]: e["value"] for e in server["env"]}
    end = int(env["KVASIR_SHUTDOWN_DELAY"]) + int(env["KVASIR_DRAIN_TIMEOUT"]) + LAST_BYTES
    end += int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    check.true("a pod has time to drain", pod["terminationGracePeriodSeconds"] > end, end)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        check.true(f"{probe}: path", server[probe]["httpGet"]["path"] in ("/ready", "/live"))
    command = compose()["services"]["kvasir-a"]["command"]
    check.equal("the command is that of compose.yaml", server["args"], command)
    balancer = by["Deployment", "kvasir-balancer"]["template"]["spec"]["containers"][0]
    servers = [e["value"] for e in balancer["env"] if e["name"] != "KVASIR_LISTEN"]
    check.equal("the balancer's servers", servers, [f"kvasir-{n}.kvasir:8000" for n in range(len(servers))])
    scaler = by["HorizontalPodAutoscaler", "kvasir"]
    check.true("no more servers than the balancer knows", scaler["maxReplicas"] <= len(servers))
    adapter = yaml_documents(os.path.join(DEPLOY, "prometheus-adapter.yaml"))[0]["rules"]["custom"][0]
    check.equal("the metric's name", scaler["metrics"][0]["pods"]["metric"]["name"], adapter["name"]["as"])
    series = adapter["seriesQuery"].split("{")[0]
    kvasir = Server(args.binary, args.model)
    check.true(f"the server has {series}", any(m.split("{")[0] == series for m in kvasir.metrics()))
    kvasir.stop()
    pool = by["InferencePool", "kvasir"]["endpointPickerRef"]
    picker = by["Service", pool["name"]]
    check.equal("the picker's port", picker["ports"][0]["port"], pool["port"]["number"])


def balancers(args):
    """Their own checks; with more servers, and one whose name nobody knows."""
    folder = tempfile.mkdtemp()
    addresses = [f"127.0.0.1:{p}" for p in (1, 2, 3)]
    haproxy = [shutil.which("haproxy", path=PATH), "-c", "-f", os.path.join(DEPLOY, "haproxy.cfg")]
    for more in ({}, {"KVASIR_C": "127.0.0.1:4", "KVASIR_D": "nobody.invalid:8000"}):
        code, text = run(*haproxy, env={**haproxy_env(*addresses), **more})
        check.true(f"haproxy.cfg with {len(more)} more", code == 0, text)
    config = os.path.join(folder, "nginx.conf")
    with open(config, "w") as f:
        f.write(nginx_text(*addresses, folder))
    code, text = run(shutil.which("nginx", path=PATH), "-t", "-e", "stderr", "-c", config)
    check.true("nginx.conf", code == 0 and "warn" not in text, text)
    shutil.rmtree(folder, True)


def systemd(args):
    unit = read("scripts/deploy/kvasir.service")
    option = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    text = run(args.binary, "serve", "--help")[1]
    delays = [int(x) for x in re.findall(r"--(?:shutdown-delay|drain-timeout) .*\[(\d+)\]", text)]
    check.equal("the defaults of both are known", len(delays), 2)
    check.true("the unit has time to drain", seconds(option["TimeoutStopSec"]) > sum(delays) + LAST_BYTES)
    if not shutil.which("systemd-analyze"):
        check.skip("systemd-analyze verify", "there is no systemd-analyze")
        return
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "kvasir.service")
    with open(path, "w") as f:  # what isn't installed here has a stand-in
        f.write(re.sub(r"/usr/local/bin/[\w-]+", "/bin/true", unit))
    code, text = run("systemd-analyze", "verify", path)
    check.true("systemd-analyze verify", code == 0 and "kvasir.service" not in text, text)
    shutil.rmtree(folder, True)


def instructions(text):
    """A Dockerfile's instructions: [(name, arguments)]"""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    words = [line.split(None, 1) for line in whole.split("\n") if line.strip()]
    return [(w[0], w[1] if len(w) > 1 else "") for w in words]


def dockerfiles(args):
    allowed = [line[1:] for line in read(".dockerignore").split("\n") if line.startswith("!")]
    for name in allowed:
        check.true(f".dockerignore: {name} exists", os.path.exists(os.path.join(ROOT, name)))
    runs = {}
    for name in ("Dockerfile", "Dockerfile.cuda"):
        steps = instructions(read(name))
        named = [a.split()[0] for n, a in steps if n == "FROM"]
        bases = dict(a.split("=", 1) for n, a in steps if n == "ARG")
        check.true(f"{name}: two stages", len(named) == 2 and all(x[2:-1] in bases for x in named), named)
        for base in bases.values():
            check.true(f"{name}: {base} names no registry", re.fullmatch(r"[a-z]+(/[a-z]+)?:[\w.-]+", base))
        last = max(i for i, (n, _) in enumerate(steps) if n == "FROM")
        end = dict(steps[last:])
        check.true(f"{name}: a user that isn't root", int(end["USER"].split(":")[0]) >= 1000)
        check.equal(f"{name}: STOPSIGNAL", end["STOPSIGNAL"], "SIGTERM")
        check.equal(f"{name}: ENTRYPOINT", end["ENTRYPOINT"], '["kvasir"]')
        check.true(f"{name}: HEALTHCHECK", '["kvasir", "ready"]' in end["HEALTHCHECK"])
        runs[name] = [re.sub(r"\s+", " ", a) for n, a in steps if n == "RUN"]
    cuda = [r.replace("gcc g++", "gcc").replace("all build/release/kvasir-cuda.so", "all")
            for r in runs["Dockerfile.cuda"]]
    check.equal("both run the same commands", cuda, runs["Dockerfile"])


def small_scripts(args):
    code, text = run("sh", os.path.join(DEPLOY, "packages.sh"), args.binary)
    good = code == 0 and "libuv1" in text and "-dev" not in text
    check.true("the packages of the program's libraries", good, text)
    ready = args.binary, "ready"
    server = Server(args.binary, args.model, "--shutdown-delay", "1")
    check.equal("kvasir ready, by argument", run(*ready, str(server.port))[0], 0)
    check.equal("kvasir ready, by environment", run(*ready, env={"KVASIR_PORT": str(server.port)})[0], 0)
    check.equal("kvasir ready: usage", [run(*ready, *x)[0] for x in (["x"], ["1", "2"])], [2, 2])
    server.process.send_signal(signal.SIGTERM)
    check.true("it leaves", wait_until(lambda: run(*ready, str(server.port))[0] == 1, 30))
    check.true("kvasir ready says why not", "kvasir: n" in run(*ready, str(server.port))[1])
    server.stop(send=False)
    check.equal("nobody listens", run(*ready, str(server.port)),
                (1, f"kvasir: no server answers on 127.0.0.1 port {server.port}\n"))


def main():
    args = arguments(__doc__)
    for test in (yaml_files, compose_file, kubernetes, balancers, systemd, dockerfiles, small_scripts):
        if not args.only or test.__name__ in args.only:
            check.run(test, args)
    check.end()


if __name__ == "__main__":
    main()
