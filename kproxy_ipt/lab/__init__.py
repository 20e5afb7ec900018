"""
A teaching cluster without Kubernetes: nodes, pods and a client as network namespaces, and a small API for kubectl.

::

      NAME-web-1  NAME-web-3 ...              NAME-web-2 ...         pods: HTTP servers that answer with their name
            |         |                            |
     NAME-n1: 192.0.2.10, 10.244.1.1        NAME-n2: 192.0.2.20     nodes, each with rules of its own kproxy-ipt
                    |                              |
                  NAME-wire: a bridge, 192.0.2.0/24
                                |
                    NAME-client: 192.0.2.50                         a host outside the cluster

One process in the background, the supervisor, is the control plane: API, controllers and the servers of all pods in one
event loop, and two `kproxy-ipt run` as its children. All state is in its memory; the folder `/run/kproxy-ipt-lab/NAME`
holds what others need to know of it.

From the ground up; a module uses only those above its own, as far as this list goes:

- `documents`: reading API objects that are plain mappings
- `layout`: names, addresses, files: what is where
- `network`: makes and removes namespaces, links and routes
- `merge`, `json_patch`, `protobuf`: what the bodies of requests mean
- `resources`: kinds and what discovery says of them; `cells`, `tables`: what `kubectl get` prints
- `addresses`, `service_defaults`, `defaults`: what an object gets that its author left out, and what is refused
- `cluster`: the objects; every write goes through it
- `api_routes`, `api`: HTTP
- `pods`, `deployments`, `endpoints`, `balancers`: what should be there, as pure functions of the objects
- `pod_server`, `kubelet`: pods become namespaces with servers
- `control`: runs all of these until nothing changes any more
- `node_daemon`: one `kproxy-ipt run`
- `state`: what is on disk, and whether the lab lives
- `supervisor`: the process; `demo`: the objects that a new lab holds
- `client`: asking the API; `status`: how the lab is; `destination`, `curl`: requests and who answers
- `lifecycle`: `up` and `down`
- `fault_texts`, `faults`: the faults in words, and how they are made and undone; `judge`: whether a lab is healthy;
  `breaking`: `break`, `check` and `fix`

Decided against: several processes for nodes and pods (slow to start, and a protocol between them), admission and
authorisation (all of the lab is its user's own), ReplicaSets (a Deployment owns its pods, which are simply numbered).
"""
