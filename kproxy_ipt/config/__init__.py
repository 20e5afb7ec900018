"""`KubeProxyConfiguration` v1alpha1 and kube-proxy's flags become one typed, validated Config."""
