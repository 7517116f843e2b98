"""Packs DIR, which has the package kvasir, as a wheel: wheel.py DIR VERSION GLIBC ARCH OUT; prints its
path. A wheel is a zip archive with a list of its files (PyPA's binary distribution format)."""
import base64
import hashlib
import os
import stat
import sys
import zipfile

root, version, glibc, arch, out = sys.argv[1:]
tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{arch}"
info = f"kvasir-{version}.dist-info"
metadata = f"""Metadata-Version: 2.1
Name: kvasir
Version: {version}
Summary: Deterministic, batch-invariant, OpenAI-compatible inference server for vision-language models
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""
with open("README.md", encoding="utf-8") as f:
    metadata += f.read()
files = {
    f"{info}/METADATA": metadata,
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: kvasir\nRoot-Is-Purelib: false\nTag: {tag}\n",
    f"{info}/entry_points.txt": "[console_scripts]\nkvasir = kvasir:main\n",
}
for folder, _, names in os.walk(root):
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "rb") as f:
            files[os.path.relpath(path, root)] = f.read()
record = ""
path = os.path.join(out, f"kvasir-{version}-{tag}.whl")
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
    def add(name, data):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        run = name.startswith(("kvasir/bin/", "kvasir/lib/"))
        entry.external_attr = (stat.S_IFREG | (0o755 if run else 0o644)) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        z.writestr(entry, data)

    for name, data in sorted(files.items()):
        data = data.encode() if isinstance(data, str) else data
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
        add(name, data)
    add(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
print(path)
