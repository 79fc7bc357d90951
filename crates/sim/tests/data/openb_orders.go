// Writes the nodes and pods of the openb trace in the orders in which the runs published with the
// FGD paper saw them, for the soak in ../openb.rs:
//
//	go run openb_orders.go TRACE-FOLDER OUTPUT-FOLDER
//
// The orders come from Go's math/rand with the seed of the run: one number is drawn and dropped,
// the pods are sorted by name and shuffled, pods are drawn from the sorted list until 130 % of the
// cards are asked for, ten numbers go to the start of kube-scheduler, and the nodes, sorted by
// name, are permuted. The ten were found by comparing results: with them, and with no other
// number up to 29, every seed gives the published allocation. Not so for multigpu50, whose pods
// must have had other names: it is left out.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

const toTheScheduler = 10

var workloads = []string{
	"default", "gpushare40", "gpushare100", "gpuspec33", "cpu200", "cpu250",
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: openb_orders TRACE-FOLDER OUTPUT-FOLDER")
		os.Exit(2)
	}
	for _, workload := range workloads {
		for seed := int64(42); seed <= 51; seed++ {
			into := filepath.Join(os.Args[2], workload, strconv.FormatInt(seed, 10))
			if err := write(os.Args[1], workload, into, seed); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

func write(trace, workload, into string, seed int64) error {
	nodeHead, nodes, err := lines(filepath.Join(trace, "openb_node_list_gpu_node.csv"))
	if err != nil {
		return err
	}
	podHead, pods, err := lines(filepath.Join(trace, "openb_pod_list_"+workload+".csv"))
	if err != nil {
		return err
	}
	sort.Strings(nodes)
	sort.Strings(pods)
	sorted := append([]string{}, pods...)

	draws := rand.New(rand.NewSource(seed))
	draws.Int()
	draws.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	capacity, demand := 0, 0
	for _, node := range nodes {
		capacity += 1000 * field(node, 3)
	}
	for _, pod := range pods {
		demand += field(pod, 3) * field(pod, 4)
	}
	for i := 0; ; i++ {
		pod := sorted[draws.Intn(len(sorted))]
		// As published: the compute of one card decides whether the pod is one too many.
		if float64(demand+field(pod, 4)) > 1.3*float64(capacity) {
			break
		}
		demand += field(pod, 3) * field(pod, 4)
		name, rest, _ := strings.Cut(pod, ",")
		pods = append(pods, fmt.Sprintf("%s-tuned-%d,%s", name, i, rest))
	}
	for i := 0; i < toTheScheduler; i++ {
		draws.Int63()
	}
	ordered := make([]string, len(nodes))
	for i, place := range draws.Perm(len(nodes)) {
		ordered[place] = nodes[i]
	}

	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if err := save(filepath.Join(into, "nodes.csv"), nodeHead, ordered); err != nil {
		return err
	}
	return save(filepath.Join(into, "pods.csv"), podHead, pods)
}

func lines(path string) (string, []string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return all[0], all[1:], nil
}

func field(line string, at int) int {
	number, _ := strconv.Atoi(strings.TrimSpace(strings.Split(line, ",")[at]))
	return number
}

func save(path, head string, lines []string) error {
	return os.WriteFile(path, []byte(head+"\n"+strings.Join(lines, "\n")+"\n"), 0o644)
}
