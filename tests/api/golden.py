"""Golden folders (tests/golden/FAMILY/VARIANT) for the scripts in this folder."""
import json
import os
import struct

import harness


class Golden:
    """A golden folder: its cases as requests, with transformers' ids of the answers."""

    def __init__(self, family, variant):
        self.folder = os.path.join(family, variant)
        with open(os.path.join(self.folder, "golden.json")) as f:
            self.about = json.load(f)
        with open(os.path.join(self.folder, "golden.safetensors"), "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            self.head, self.data = json.loads(f.read(size)), f.read()
        self.cases = self.about["cases"]

    def bytes(self, name):
        begin, end = self.head[name]["data_offsets"]
        return self.data[begin:end]

    def ids(self, name):
        raw = self.bytes(name)
        return list(struct.unpack(f"<{len(raw) // 4}i", raw))

    def greedy(self, n):
        return self.ids(f"case{n}.greedy_ids")

    def url(self, name, frame=0):
        """Of an image, or of a frame of several."""
        height, width, _ = self.head[name]["shape"][-3:]
        rgb = self.bytes(name)[3 * width * height * frame:]

        def pixel(x, y):
            at = 3 * (y * width + x)
            return tuple(rgb[at:at + 3])

        return harness.data_url(harness.png(width, height, pixel))

    def image(self, n, k):
        return {"type": "image_url", "image_url": {"url": self.url(f"case{n}.image{k}.rgb")}}

    def video(self, n, k):
        name = f"case{n}.video{k}.frames"
        frames = [self.url(name, i) for i in range(self.head[name]["shape"][0])]
        return {"type": "video_url", "video_url": {"url": frames, "fps": self.cases[n]["fps"][k]}}

    def content(self, n, content):
        """Parts of a message with the images in them."""
        if isinstance(content, str):
            return content
        make = {"image": self.image, "video": self.video}
        return [make[p["type"]](n, p["index"]) if p["type"] in make else p for p in content]

    def parts(self, n):
        return self.content(n, self.cases[n]["messages"][0]["content"])
