{{- define "tensorbus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tensorbus.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "tensorbus.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tensorbus.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tensorbus.keys" -}}
{{- .Values.keys.existingSecret | default (printf "%s-keys" (include "tensorbus.fullname" .)) }}
{{- end }}

{{- /* What selects pods never changes in the life of a release. Of (dict "root" $ "component" "broker"). */}}
{{- define "tensorbus.selector" -}}
app.kubernetes.io/name: {{ include "tensorbus.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .group }}
tensorbus/group: {{ . }}
{{- end }}
{{- end }}

{{- define "tensorbus.labels" -}}
{{ include "tensorbus.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{- /* Of (dict "root" $ "image" {}); what the image does not say is that of all. */}}
{{- define "tensorbus.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.image | default dict) -}}
image: {{ printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- /* The first lines of the spec of each pod. */}}
{{- define "tensorbus.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # their variables begin with TENSORBUS_ too, and would be taken for settings
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "tensorbus.rights" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "tensorbus.command" -}}
- --cluster-id={{ include "tensorbus.fullname" . }}
- --exit-timeout-secs={{ .Values.exitTimeoutSecs }}
{{- end }}

{{- define "tensorbus.service-keys" -}}
- --broker=tcp://{{ include "tensorbus.fullname" . }}-broker:8003
- --curve-key=/keys/service.key
- --curve-broker-key=/keys/broker.pub
{{- end }}

{{- /* Live and started: the loop of the service has turns. Each answers within 5 s, and says no then. */}}
{{- define "tensorbus.liveness" -}}
startupProbe:
  httpGet: { path: /health/live, port: metrics }
  periodSeconds: 2
  timeoutSeconds: 10
  failureThreshold: 150
livenessProbe:
  httpGet: { path: /health/live, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end }}

{{- define "tensorbus.shm" -}}
- name: shm
{{- if .Values.placement.sharedHost }}
  hostPath: { path: {{ .Values.placement.hostPath }}, type: DirectoryOrCreate }
{{- else }}
  emptyDir: { medium: Memory, sizeLimit: {{ .Values.placement.shmSize }} }
{{- end }}
{{- end }}

{{- /* The kubelet makes the directory, for root alone. Its owner may open it to the services without any capability. */}}
{{- define "tensorbus.shared-host" -}}
{{- if .Values.placement.sharedHost }}
initContainers:
  - name: shm
    {{- include "tensorbus.image" (dict "root" .) | nindent 4 }}
    command: [chmod, "1777", /dev/shm]
    securityContext:
      runAsNonRoot: false
      runAsUser: 0
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: { drop: [ALL] }
    resources:
      requests: { cpu: 10m, memory: 16Mi }
      limits: { memory: 64Mi }
    volumeMounts:
      - { name: shm, mountPath: /dev/shm }
{{- end }}
{{- end }}

{{- /* The broker and the stub hosts see the models at the same place, so hosts need not be told where they are. */}}
{{- define "tensorbus.models" -}}
{{- with .Values.modelRepository.volume }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Where pods go. Of (dict "root" $ "selector" text "placed" values of the component). */}}
{{- define "tensorbus.placement" -}}
{{- with .placed.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .placed.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .placed.affinity }}
affinity:
  {{- toYaml .placed.affinity | nindent 2 }}
{{- else if .root.Values.placement.sharedHost }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: {{ include "tensorbus.name" .root }}
            app.kubernetes.io/instance: {{ .root.Release.Name }}
          matchExpressions:
            - { key: app.kubernetes.io/component, operator: In, values: [broker, gateway, stub] }
{{- end }}
{{- if not .root.Values.placement.sharedHost }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* A group of stub hosts, with the defaults. Of (dict "root" $ "group" group). */}}
{{- define "tensorbus.group" -}}
{{- mergeOverwrite (deepCopy .root.Values.stubDefaults) .group | toYaml }}
{{- end }}

{{- /* The models of patterns like those of file names, as one regular expression. */}}
{{- define "tensorbus.models-regex" -}}
{{- $all := list }}
{{- range . }}
{{- $all = append $all (regexQuoteMeta . | replace "\\*" ".*" | replace "\\?" "." | replace "\\[!" "[^" | replace "\\[" "[" | replace "\\]" "]") }}
{{- end }}
{{- join "|" $all }}
{{- end }}

{{- /* A host more at once where requests wait; one less after five minutes without. */}}
{{- define "tensorbus.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - { type: Pods, value: 1, periodSeconds: 120 }
{{- end }}
