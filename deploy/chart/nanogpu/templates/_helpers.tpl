{{/* Labels of every object; the argument is (list $ "nanogpu-agent"). What helm manages it marks itself. */}}
{{- define "nanogpu.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/part-of: nanogpu
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
{{- end -}}

{{/* An image of ours; the argument is (list $ .Values.agent.image). */}}
{{- define "nanogpu.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{/* kube-scheduler's image: of the cluster's own version, without what a vendor added to it. */}}
{{- define "nanogpu.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.kubeScheduler.image.repository }}:{{ .Values.kubeScheduler.image.tag | default $version }}
{{- end -}}

{{/* The dialects that are spoken, as {"all": [...]}. */}}
{{- define "nanogpu.dialects" -}}
{{- $spoken := list -}}
{{- $known := list -}}
{{- range fromYamlArray (.Files.Get "files/dialects.yaml") -}}
{{- $known = append $known .name -}}
{{- if $.Values.dialects -}}
{{- if has .name $.Values.dialects }}{{ $spoken = append $spoken . }}{{ end -}}
{{- else if not (has .name (list "hami" "vgpu-manager")) -}}
{{- $spoken = append $spoken . -}}
{{- end -}}
{{- end -}}
{{- range .Values.dialects -}}
{{- if not (has . $known) }}{{ fail (printf "dialects: %q is none of %s" . (join ", " $known)) }}{{ end -}}
{{- end -}}
{{ dict "all" $spoken | toJson }}
{{- end -}}

{{/* Every resource name that is read, as a list of CEL. */}}
{{- define "nanogpu.celResources" -}}
{{- $names := list -}}
{{- range (include "nanogpu.dialects" . | fromJson).all -}}
{{- range concat .identities .measures }}{{ $names = append $names (quote .) }}{{ end -}}
{{- end -}}
[{{ join ", " $names }}]
{{- end -}}

{{/* kube-scheduler's configuration: deploy/kube-scheduler/own-scheduler.yaml, for this namespace and these dialects. */}}
{{- define "nanogpu.kubeSchedulerConfig" -}}
{{- $config := .Files.Get "files/own-scheduler.yaml" | fromYaml -}}
{{- $_ := set $config.leaderElection "resourceNamespace" .Release.Namespace -}}
{{- $managed := list -}}
{{- $dialects := (include "nanogpu.dialects" . | fromJson).all -}}
{{- range $dialects -}}
{{- range .identities }}{{ $managed = append $managed (dict "name" .) }}{{ end -}}
{{- end -}}
{{- range $dialects -}}
{{- range .measures }}{{ $managed = append $managed (dict "name" . "ignoredByScheduler" true) }}{{ end -}}
{{- end -}}
{{- $_ := set (index $config.extenders 0) "managedResources" $managed -}}
{{ toYaml $config }}
{{- end -}}

{{/* Options that scheduler and agent share, as a list of arguments. */}}
{{- define "nanogpu.commonArgs" -}}
{{- with .Values.dialects }}
- --dialects={{ join "," . }}
{{- end }}
- --memory-unit={{ .Values.memoryUnit }}
{{- end -}}
