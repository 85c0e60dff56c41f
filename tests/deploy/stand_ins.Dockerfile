# One target for each image that tests/deploy/stand_ins.py makes. `debian` is what debootstrap made; it has this machine's
# certificates, so that a build here reaches the packages that this machine reaches.
ARG DEBIAN
FROM ${DEBIAN} AS python
ARG PIP_CONF
RUN printf '%s' "$PIP_CONF" > /etc/pip.conf && ln -s python3 /usr/bin/python && ln -s pip3 /usr/local/bin/pip
CMD ["python"]

FROM ${DEBIAN} AS packages
RUN apt-get update && apt-get install --yes --no-install-recommends busybox-static prometheus prometheus-alertmanager wget

FROM scratch AS busybox
COPY --from=packages /bin/busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
CMD ["sh"]

FROM packages AS prom-prometheus
RUN install -d -o 65534 -g 65534 /prometheus
ENTRYPOINT ["prometheus"]

FROM packages AS prom-alertmanager
RUN install -d -o 65534 -g 65534 /alertmanager
ENTRYPOINT ["prometheus-alertmanager"]

# chDB behind ClickHouse's HTTP interface. Python as the first process of a container heeds SIGINT, and not SIGTERM.
FROM python AS clickhouse-clickhouse-server
RUN apt-get update && apt-get install --yes --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
ARG PACKAGES
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir ${PACKAGES}
RUN install -d -o 101 -g 101 /var/lib/clickhouse
COPY clickhouse_http.py /opt/
WORKDIR /var/lib/clickhouse
STOPSIGNAL SIGINT
ENTRYPOINT ["/opt/venv/bin/python", "/opt/clickhouse_http.py", "/var/lib/clickhouse/db", "8123", "0.0.0.0"]
