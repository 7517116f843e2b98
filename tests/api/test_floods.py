"""scripts/flood.py, two floods of it: python3 test_floods.py [--binary B] [--demo DIR]
Generous limits: that nobody waits as long as the floods last. scripts/soak.sh runs all of them."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Checks, arguments  # noqa: E402

check = Checks()
args = arguments(__doc__)
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/flood.py")


def test_floods():
    limits = ["--seconds", "2", "--chat-limit", "20", "--health-limit", "10"]
    what = [SCRIPT, "--only", "idle:4,tokenize:2", "--binary", args.binary, "--model", args.demo]
    p = subprocess.run([sys.executable, *what, *limits], capture_output=True, text=True, timeout=300)
    said = p.stdout + p.stderr
    check.true("floods", p.returncode == 0 and "\n9 passed, 0 failed" in p.stdout, said)
    check.true("both were floods", len(re.findall(r"(?:open|sent) [1-9]\d*", said)) == 2, said)


check.run(test_floods)
check.end()
