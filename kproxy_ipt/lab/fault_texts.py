"""
The faults of `lab break` in words: what a user would report, hints, cause and cure, in English and French.

Which fault is what, is done in `faults`. Hints go from where to look to what to see there. A cure is a few lines for a
shell in which KUBECONFIG leads to the lab; `@LAB@` and `@FOLDER@` stand for its name and its folder.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from kproxy_ipt.lab.layout import Layout

Language = Literal["en", "fr"]
STALE_SOURCE_PORT = 40000
"""Of the UDP client whose flow is remembered wrongly."""
STATSD_NODE_PORT = 32007


class Words(msgspec.Struct, frozen=True):
    """One text in each language."""

    en: str
    fr: str

    def spoken(self, language: Language, layout: Layout | None = None) -> str:
        """The text in one language, with the names of a lab."""
        chosen = self.fr if language == "fr" else self.en
        return chosen if layout is None else _with_names(chosen, layout)


class FaultText(msgspec.Struct, frozen=True, kw_only=True):
    """
    A fault in words.

    Attributes:
        title: A few words.
        symptom: As a user would report it.
        hints: From where to look to what to see there.
        cause: What is wrong.
        cure: Commands that put it right, the same in both languages.
    """

    title: Words
    symptom: Words
    hints: Sequence[Words]
    cause: Words
    cure: str

    def cure_in(self, layout: Layout) -> str:
        """The commands of the cure, with the names of a lab."""
        return _with_names(self.cure, layout)


def _with_names(chosen: str, layout: Layout) -> str:
    return chosen.replace("@LAB@", layout.name).replace("@FOLDER@", str(layout.folder))


FAULT_TEXTS: Mapping[str, FaultText] = {
    "wrong-selector": FaultText(
        title=Words("the selector matches no pod", "le sélecteur ne désigne aucun pod"),
        symptom=Words(
            "Since this morning's release, web refuses every connection. The pods are all fine, we looked.",
            "Depuis la mise en production de ce matin, web refuse toutes les connexions. Pourtant les pods vont bien, "
            "nous avons vérifié.",
        ),
        hints=(
            Words(
                "Which endpoints does the Service have? kubectl get endpointslices",
                "Quels endpoints le Service possède-t-il ? kubectl get endpointslices",
            ),
            Words(
                "kproxy-ipt lint --hostname-override n1 names Services without endpoints.",
                "kproxy-ipt lint --hostname-override n1 signale les Services sans endpoint.",
            ),
            Words(
                "Compare kubectl get svc web -o wide with kubectl get pods --show-labels.",
                "Comparez kubectl get svc web -o wide et kubectl get pods --show-labels.",
            ),
        ),
        cause=Words(
            "The selector of web asks for app=web-v2; its pods have app=web.",
            "Le sélecteur de web demande app=web-v2, alors que ses pods portent app=web.",
        ),
        cure="""kubectl patch svc web --type merge -p '{"spec":{"selector":{"app":"web"}}}'""",
    ),
    "not-ready": FaultText(
        title=Words("no pod is ready", "aucun pod n'est prêt"),
        symptom=Words(
            "web refuses connections, but if I ask a pod at its own address, it answers.",
            "web refuse les connexions, mais si j'interroge un pod à sa propre adresse, il répond.",
        ),
        hints=(
            Words(
                "kproxy-ipt explain svc/default/web --hostname-override n1 says of each endpoint whether it is in.",
                "kproxy-ipt explain svc/default/web --hostname-override n1 dit pour chaque endpoint s'il est retenu.",
            ),
            Words(
                "Look at the column READY of kubectl get pods.",
                "Regardez la colonne READY de kubectl get pods.",
            ),
            Words(
                "kubectl describe pod tells the reason under Conditions and Annotations.",
                "kubectl describe pod donne la raison, sous Conditions et Annotations.",
            ),
        ),
        cause=Words(
            "All pods have the annotation kproxy-ipt.lab/ready=false, as if their readiness probe failed: they answer, "
            "but no Service uses them.",
            "Tous les pods portent l'annotation kproxy-ipt.lab/ready=false, comme si leur sonde échouait : ils "
            "répondent, mais aucun Service ne les utilise.",
        ),
        cure="kubectl annotate pods -l app=web kproxy-ipt.lab/ready-",
    ),
    "wrong-target-port": FaultText(
        title=Words("the target port is not that of the pods", "le targetPort n'est pas celui des pods"),
        symptom=Words(
            "web refuses connections. It has three endpoints, all ready!",
            "web refuse les connexions. Il a pourtant trois endpoints, tous prêts !",
        ),
        hints=(
            Words(
                "Ready says nothing about ports. Where do packets go? "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst 192.0.2.10 --dport 32080",
                "Être prêt ne dit rien des ports. Où vont les paquets ? "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst 192.0.2.10 --dport 32080",
            ),
            Words(
                "Ask an endpoint at exactly that port: kproxy-ipt lab curl ADDRESS:PORT --from n1",
                "Interrogez un endpoint exactement sur ce port : kproxy-ipt lab curl ADRESSE:PORT --from n1",
            ),
            Words(
                "Compare targetPort of the Service with containerPort of the pods.",
                "Comparez le targetPort du Service et le containerPort des pods.",
            ),
        ),
        cause=Words(
            "targetPort of web is 8081; its pods listen on 8080 (named http).",
            "Le targetPort de web vaut 8081 ; ses pods écoutent sur 8080 (nommé http).",
        ),
        cure="""kubectl patch svc web --type json \\
  -p '[{"op": "replace", "path": "/spec/ports/0/targetPort", "value": "http"}]'""",
    ),
    "flushed-table": FaultText(
        title=Words("the nat table of n1 was flushed", "la table nat de n1 a été vidée"),
        symptom=Words(
            "http://192.0.2.10:32080 is dead, http://192.0.2.20:32080 works. Somebody did something on n1, he says it "
            "was nothing.",
            "http://192.0.2.10:32080 ne répond plus, http://192.0.2.20:32080 fonctionne. Quelqu'un a touché à n1 ; il "
            "dit que ce n'était rien.",
        ),
        hints=(
            Words(
                "What does kproxy-ipt check --netns @LAB@-n1 --hostname-override n1 --config @FOLDER@/n1.yaml say?",
                "Que dit kproxy-ipt check --netns @LAB@-n1 --hostname-override n1 --config @FOLDER@/n1.yaml ?",
            ),
            Words(
                "kproxy-ipt repairs a flushed table within two seconds. Why does this one not? kproxy-ipt lab status",
                "kproxy-ipt répare une table vidée en deux secondes. Pourquoi pas ici ? kproxy-ipt lab status",
            ),
            Words(
                "See the state of its process: ps -eo pid,stat,args | grep @LAB@-n1",
                "Regardez l'état de son processus : ps -eo pid,stat,args | grep @LAB@-n1",
            ),
        ),
        cause=Words(
            "The nat table of n1 was flushed (iptables -t nat -F) while its kproxy-ipt was stopped (state T).",
            "La table nat de n1 a été vidée (iptables -t nat -F) pendant que son kproxy-ipt était suspendu (état T).",
        ),
        cure="pkill -CONT -f 'kproxy-ipt run .*@LAB@-n1'",
    ),
    "local-without-pods": FaultText(
        title=Words("policy Local, and no pod on n1", "politique Local, et aucun pod sur n1"),
        symptom=Words(
            "From outside, http://192.0.2.10:32080 gives no answer at all; http://192.0.2.20:32080 does. From inside "
            "everything works.",
            "Depuis l'extérieur, http://192.0.2.10:32080 ne donne aucune réponse ; http://192.0.2.20:32080, si. De "
            "l'intérieur, tout fonctionne.",
        ),
        hints=(
            Words(
                "kproxy-ipt explain svc/default/web --hostname-override n1, and the same for n2: what differs?",
                "kproxy-ipt explain svc/default/web --hostname-override n1, puis n2 : quelle différence ?",
            ),
            Words(
                "On which nodes are the pods? kubectl get pods -o wide",
                "Sur quels nœuds sont les pods ? kubectl get pods -o wide",
            ),
            Words(
                "kubectl get svc web -o yaml | grep -i policy",
                "kubectl get svc web -o yaml | grep -i policy",
            ),
        ),
        cause=Words(
            "externalTrafficPolicy of web is Local and all its pods are on n2: n1 has to drop what comes from outside.",
            "externalTrafficPolicy de web vaut Local et tous ses pods sont sur n2 : n1 doit jeter ce qui vient de "
            "l'extérieur.",
        ),
        cure="""kubectl patch svc web --type merge -p '{"spec":{"externalTrafficPolicy":"Cluster"}}'""",
    ),
    "other-cidr": FaultText(
        title=Words("a wrong cluster CIDR", "un mauvais CIDR de cluster"),
        symptom=Words(
            "web answers, but its log has no addresses of pods any more: all requests from other pods seem to come "
            "from their node. Our rate limits by address are useless.",
            "web répond, mais son journal ne contient plus d'adresses de pods : toutes les requêtes des autres pods "
            "semblent venir de leur nœud. Nos limites par adresse ne servent plus à rien.",
        ),
        hints=(
            Words(
                "See it: kproxy-ipt lab curl web --from a pod, column CLIENT SEEN.",
                "Constatez-le : kproxy-ipt lab curl web --from un pod, colonne CLIENT SEEN.",
            ),
            Words(
                "Who masquerades? kproxy-ipt trace --netns @LAB@-n1 --src 10.244.1.11 --dst 10.96.0.10 --dport 80",
                "Qui masque l'adresse ? "
                "kproxy-ipt trace --netns @LAB@-n1 --src 10.244.1.11 --dst 10.96.0.10 --dport 80",
            ),
            Words(
                "The rule says '! -s'. Compare with the pod ranges of kubectl get nodes -o yaml, and with "
                "@FOLDER@/n1.yaml.",
                "La règle dit « ! -s ». Comparez avec les plages de pods de kubectl get nodes -o yaml et avec "
                "@FOLDER@/n1.yaml.",
            ),
        ),
        cause=Words(
            "clusterCIDR in the configuration of both nodes is 10.245.0.0/16; pods have addresses of 10.244.0.0/16 and "
            "count as strangers, who are masqueraded.",
            "clusterCIDR vaut 10.245.0.0/16 dans la configuration des deux nœuds ; les pods sont dans 10.244.0.0/16 et "
            "passent pour des étrangers, dont l'adresse est masquée.",
        ),
        cure="sed -i 's|10.245.0.0/16|10.244.0.0/16|' @FOLDER@/n1.yaml @FOLDER@/n2.yaml",
    ),
    "stale-conntrack": FaultText(
        title=Words("a UDP flow that is remembered wrongly", "un flux UDP resté en mémoire"),
        symptom=Words(
            f"One single client, 192.0.2.50 with source port {STALE_SOURCE_PORT}, gets no answer from the UDP Service "
            f"statsd at 192.0.2.10:{STATSD_NODE_PORT}. From any other port it works.",
            f"Un seul client, 192.0.2.50 avec le port source {STALE_SOURCE_PORT}, n'obtient aucune réponse du Service "
            f"UDP statsd en 192.0.2.10:{STATSD_NODE_PORT}. Depuis tout autre port, cela marche.",
        ),
        hints=(
            Words(
                "Are the rules right? kproxy-ipt check and kproxy-ipt lab curl statsd",
                "Les règles sont-elles bonnes ? kproxy-ipt check et kproxy-ipt lab curl statsd",
            ),
            Words(
                "Rules of the nat table see only the first packet of a flow. Who remembers the rest?",
                "La table nat ne voit que le premier paquet d'un flux. Qui se souvient de la suite ?",
            ),
            Words(
                "ip netns exec @LAB@-n1 conntrack -L -p udp: where does this flow go, and is there such a pod?",
                "ip netns exec @LAB@-n1 conntrack -L -p udp : où va ce flux, et ce pod existe-t-il ?",
            ),
        ),
        cause=Words(
            "Connection tracking on n1 still sends this flow to 10.244.1.250, a pod that is gone; the client goes on "
            "sending, so that the record never ends.",
            "Le suivi de connexions de n1 envoie toujours ce flux à 10.244.1.250, un pod disparu ; le client continue "
            "d'émettre, et l'entrée n'expire jamais.",
        ),
        cure=(
            "kproxy-ipt sync --once --netns @LAB@-n1 --hostname-override n1 --config @FOLDER@/n1.yaml --output json"
            " > /dev/null"
        ),
    ),
    "foreign-firewall": FaultText(
        title=Words("a firewall rule in the way", "une règle de pare-feu sur le chemin"),
        symptom=Words(
            "Through n1 many requests to web hang. kube-proxy must be broken there.",
            "Par n1, beaucoup de requêtes vers web restent bloquées. C'est sûrement kube-proxy qui est cassé là-bas.",
        ),
        hints=(
            Words(
                "Is it? kproxy-ipt check --netns @LAB@-n1 --hostname-override n1 --config @FOLDER@/n1.yaml",
                "Vraiment ? kproxy-ipt check --netns @LAB@-n1 --hostname-override n1 --config @FOLDER@/n1.yaml",
            ),
            Words(
                "trace walks foreign rules too: "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst 192.0.2.10 --dport 32080",
                "trace suit aussi les règles des autres : "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst 192.0.2.10 --dport 32080",
            ),
            Words(
                "ip netns exec @LAB@-n1 iptables -S FORWARD",
                "ip netns exec @LAB@-n1 iptables -S FORWARD",
            ),
        ),
        cause=Words(
            "A rule in front of all others in FORWARD of n1 drops TCP to port 8080; no proxy writes such a rule, and "
            "none removes it.",
            "Une règle placée en tête de FORWARD sur n1 jette le TCP vers le port 8080 ; aucun proxy n'écrit une telle "
            "règle, et aucun ne l'enlève.",
        ),
        cure="ip netns exec @LAB@-n1 iptables -D FORWARD -p tcp --dport 8080 -j DROP",
    ),
    "source-ranges": FaultText(
        title=Words("source ranges keep the client out", "les plages sources excluent le client"),
        symptom=Words(
            "We gave web a load balancer. Its address does not answer from 192.0.2.50; the node port does.",
            "Nous avons donné un répartiteur de charge à web. Son adresse ne répond pas depuis 192.0.2.50 ; le port de "
            "nœud, si.",
        ),
        hints=(
            Words(
                "kubectl get svc web names the address; "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst ADDRESS --dport 80",
                "kubectl get svc web donne l'adresse ; "
                "kproxy-ipt trace --netns @LAB@-n1 --src 192.0.2.50 --dst ADRESSE --dport 80",
            ),
            Words(
                "Chains KUBE-FW-... let some sources pass. Which?",
                "Les chaînes KUBE-FW-… ne laissent passer que certaines sources. Lesquelles ?",
            ),
            Words(
                "kubectl get svc web -o yaml: loadBalancerSourceRanges",
                "kubectl get svc web -o yaml : loadBalancerSourceRanges",
            ),
        ),
        cause=Words(
            "loadBalancerSourceRanges of web has 198.51.100.0/24 alone; the client is 192.0.2.50.",
            "loadBalancerSourceRanges de web ne contient que 198.51.100.0/24 ; le client est 192.0.2.50.",
        ),
        cure="""kubectl patch svc web --type merge -p '{"spec":{"loadBalancerSourceRanges":["192.0.2.0/24"]}}'""",
    ),
    "frozen-daemon": FaultText(
        title=Words("kproxy-ipt of n2 hangs", "le kproxy-ipt de n2 est figé"),
        symptom=Words(
            "After the pods of web were replaced, requests through 192.0.2.20 hang; those through 192.0.2.10 are fine.",
            "Depuis le remplacement des pods de web, les requêtes par 192.0.2.20 restent bloquées ; celles par "
            "192.0.2.10 passent.",
        ),
        hints=(
            Words(
                "To which endpoints do the rules of n2 lead? "
                "kproxy-ipt trace --netns @LAB@-n2 --src 192.0.2.50 --dst 192.0.2.20 --dport 32080",
                "Vers quels endpoints mènent les règles de n2 ? "
                "kproxy-ipt trace --netns @LAB@-n2 --src 192.0.2.50 --dst 192.0.2.20 --dport 32080",
            ),
            Words(
                "Compare with kubectl get pods -o wide: these rules are old. Who should have written new ones?",
                "Comparez avec kubectl get pods -o wide : ces règles sont vieilles. Qui devait en écrire de neuves ?",
            ),
            Words(
                "kproxy-ipt lab status; ps -eo pid,stat,args | grep @LAB@-n2",
                "kproxy-ipt lab status ; ps -eo pid,stat,args | grep @LAB@-n2",
            ),
        ),
        cause=Words(
            "The kproxy-ipt of n2 was stopped (state T) before the pods were replaced: its rules are those of before.",
            "Le kproxy-ipt de n2 a été suspendu (état T) avant le remplacement des pods : ses règles datent d'avant.",
        ),
        cure="pkill -CONT -f 'kproxy-ipt run .*@LAB@-n2'",
    ),
}
