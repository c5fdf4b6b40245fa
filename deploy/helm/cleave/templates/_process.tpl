{{- /* A deployment of one process. Arguments: root, component, args, database, resources. */ -}}
{{- define "cleave.process" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "cleave.fullname" $root }}-{{ .component }}
  labels:
    {{- include "cleave.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: 1
  selector:
    matchLabels:
      {{- include "cleave.selectorLabels" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- include "cleave.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
    spec:
      serviceAccountName: {{ include "cleave.serviceAccountName" $root }}
      automountServiceAccountToken: false
      securityContext: {{- include "cleave.podSecurityContext" $root | nindent 8 }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "cleave.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [cleave]
          args: {{- toYaml .args | nindent 12 }}
          env: {{- include "cleave.env" (dict "root" $root "database" .database) | nindent 12 }}
          ports:
            - {name: metrics, containerPort: {{ $root.Values.metricsPort }}}
          {{- include "cleave.probes" $root | nindent 10 }}
          resources: {{- toYaml .resources | nindent 12 }}
          securityContext: {{- include "cleave.securityContext" $root | nindent 12 }}
          volumeMounts: {{- include "cleave.volumeMounts" $root | nindent 12 }}
      volumes: {{- include "cleave.volumes" $root | nindent 8 }}
{{- end -}}
