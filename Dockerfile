# The CPU image: `docker build -t kvasir .`, then
#   docker run --rm -p 127.0.0.1:8000:8000 kvasir                                          the demo model
#   docker run --rm -p 127.0.0.1:8000:8000 -v /path/to/checkpoint:/model:ro kvasir serve --model /model
# docs/deployment.md has more. The same program runs on all x86-64 machines: kernels are chosen at start. On
# ARM64, or with `docker build --platform linux/arm64`, the same file builds the ARM64 image.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc libc6-dev make pkg-config libmicrohttpd-dev libuv1-dev libjansson-dev libjpeg-dev libwebp-dev \
        libsodium-dev libutf8proc-dev zlib1g-dev libgif-dev libstb-dev \
        libzmq3-dev libmsgpack-dev libcurl4-openssl-dev libwslay-dev libmd-dev libgnutls28-dev \
    && for p in libjs-marked node-dompurify libjs-highlight.js libjs-katex fonts-katex libjs-pdf; do \
        apt-get install -y --no-install-recommends "$p" || echo "the page is built without $p"; done \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Besides the program: the names of the packages whose libraries it needs, which differ between releases.
RUN make -j"$(nproc)" all \
    && make install DESTDIR=/out \
    && strip /out/usr/local/bin/kvasir \
    && sh scripts/deploy/packages.sh /out/usr/local/bin/kvasir >/packages

FROM ${BASE}
COPY --from=build /packages /usr/local/share/kvasir/packages
RUN apt-get update \
    && xargs apt-get install -y --no-install-recommends ca-certificates </usr/local/share/kvasir/packages \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin kvasir
COPY --from=build /out/usr/local /usr/local
USER 10001:10001
WORKDIR /
# In a container it listens for the others; which of them reach it, the port mapping says.
ENV KVASIR_HOST=0.0.0.0 KVASIR_PORT=8000
EXPOSE 8000
# It drains: --shutdown-delay and --drain-timeout (5 and 25 s); give it 40 s before it is killed.
STOPSIGNAL SIGTERM
# A large model loads for minutes: failures in that time don't count.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10m --retries=3 CMD ["kvasir", "ready"]
ENTRYPOINT ["kvasir"]
CMD ["serve"]
