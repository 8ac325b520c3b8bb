"""autoscale.py POOL: keeps a warm pool at twice the claims of the last half minute."""

import argparse
import time

from kubernetes import client, config, watch

GROUP = ("extensions.agents.x-k8s.io", "v1beta1")
WINDOW = 30

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("pool")
parser.add_argument("--namespace", default="default")
parser.add_argument("--least", type=int, default=1)
parser.add_argument("--most", type=int, default=10)
parser.add_argument("--seconds", type=int, help="stop after this time")
options = parser.parse_args()

config.load_kube_config()
api = client.CustomObjectsApi()
pool = api.get_namespaced_custom_object(*GROUP, options.namespace, "sandboxwarmpools", options.pool)
size, recent = pool["spec"]["replicas"], []
stream = watch.Watch().stream(
    api.list_namespaced_custom_object, *GROUP, options.namespace, "sandboxclaims", timeout_seconds=options.seconds
)
for event in stream:
    claim = event["object"]
    if event["type"] != "ADDED" or claim["spec"].get("warmPoolRef", {}).get("name") != options.pool:
        continue
    now = time.monotonic()
    recent = [moment for moment in recent if now - moment < WINDOW] + [now]
    wanted = max(options.least, min(options.most, 2 * len(recent)))
    if wanted != size:
        body = {"spec": {"replicas": wanted}}
        api.patch_namespaced_custom_object_scale(*GROUP, options.namespace, "sandboxwarmpools", options.pool, body)
        print(f"{options.pool}: {size} -> {wanted}", flush=True)
        size = wanted
