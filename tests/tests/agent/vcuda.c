/* What gpu-manager's limiter does when a process begins to use a card, written anew after its published
 * interface: who it is, by /proc/self/cgroup; a call of RegisterVDevice over gRPC, in HTTP/2 frames as its
 * Go client sends them; then the two files, read as C structs. Prints what it found.
 *
 *   vcuda            as the limiter
 *   vcuda POD [ID]   says that it is of another pod, or in another container
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FOLDER "/etc/vcuda/"
#define SOCKET FOLDER "vcuda.sock"

struct version {
	int major, minor;
} __attribute__((packed, aligned(8)));

struct limits {
	char pod_uid[48];
	int limit;
	char unused[4044];
	char container_name[4096];
	char bus_id[16];
	uint64_t gpu_memory;
	int utilization;
	int hard_limit;
	struct version driver_version;
	int enable;
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct limits) == 8240, "the size of the file");
_Static_assert(offsetof(struct limits, gpu_memory) == 8208, "where memory is");
_Static_assert(offsetof(struct limits, enable) == 8232, "where the last field is");

/* The last two parts of the path of the memory cgroup: pod<uid>/<container>. */
static int who(char *pod, char *container)
{
	char line[4096];
	FILE *file = fopen("/proc/self/cgroup", "r");
	while (file && fgets(line, sizeof line, file)) {
		if (!strstr(line, ":memory:"))
			continue;
		line[strcspn(line, "\n")] = 0;
		char *last = strrchr(line, '/');
		if (!last)
			break;
		*last = 0;
		char *before = strstr(strrchr(line, '/'), "/pod");
		if (!before)
			break;
		strcpy(pod, before + 4);
		strcpy(container, last + 1);
		fclose(file);
		return 0;
	}
	return -1;
}

static unsigned char out[4096];
static size_t length;

static void put(const void *bytes, size_t count)
{
	memcpy(out + length, bytes, count);
	length += count;
}

static void frame(unsigned char kind, unsigned char flags, unsigned char stream, const void *bytes, size_t count)
{
	unsigned char head[9] = {count >> 16, count >> 8, count, kind, flags, 0, 0, 0, stream};
	put(head, sizeof head);
	put(bytes, count);
}

/* A literal that is not indexed, with a new name, and no Huffman coding. */
static size_t field(unsigned char *at, const char *name, const char *value)
{
	size_t a = strlen(name), b = strlen(value);
	at[0] = 0;
	at[1] = a;
	memcpy(at + 2, name, a);
	at[2 + a] = b;
	memcpy(at + 3 + a, value, b);
	return 3 + a + b;
}

/* A text of a protobuf message. */
static size_t text(unsigned char *at, int number, const char *value)
{
	size_t count = strlen(value);
	at[0] = number << 3 | 2;
	at[1] = count;
	memcpy(at + 2, value, count);
	return 2 + count;
}

static int take(int fd, unsigned char *at, size_t count)
{
	while (count > 0) {
		ssize_t got = read(fd, at, count);
		if (got <= 0)
			return -1;
		at += got;
		count -= got;
	}
	return 0;
}

/* 0 if the call was answered with a message, 1 if it was refused, -1 if nobody is there. */
static int call(const char *pod, const char *container)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
		close(fd);
		return -1;
	}
	unsigned char head[1024], message[1024] = {0}, answer[65536];
	size_t size = 0, count = 5;
	size += field(head + size, ":method", "POST");
	size += field(head + size, ":scheme", "http");
	size += field(head + size, ":path", "/vcuda.VCUDAService/RegisterVDevice");
	size += field(head + size, ":authority", SOCKET);
	size += field(head + size, "content-type", "application/grpc");
	size += field(head + size, "te", "trailers");
	/* It does not say a card's address; the name of the container only if it has no ID. */
	count += text(message + count, 2, pod);
	count += text(message + count, 4, container);
	message[4] = count - 5;
	message[3] = (count - 5) >> 8;
	length = 0;
	put("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	frame(4, 0, 0, "", 0);
	frame(1, 4, 1, head, size);
	frame(0, 1, 1, message, count);
	int outcome = -1;
	if (write(fd, out, length) != (ssize_t)length)
		goto done;
	while (!take(fd, answer, 9)) {
		unsigned char kind = answer[3], flags = answer[4], stream = answer[8];
		size_t more = (size_t)answer[0] << 16 | answer[1] << 8 | answer[2];
		if (more > sizeof answer || take(fd, answer, more))
			break;
		if (stream != 1)
			continue;
		/* A message, or an end without one. */
		if (kind == 0 && more >= 5)
			outcome = 0;
		if (kind == 3 || (flags & 1 && kind == 1)) {
			outcome = outcome == 0 ? 0 : 1;
			break;
		}
	}
done:
	close(fd);
	return outcome;
}

int main(int argc, char **argv)
{
	char pod[4096], container[4096], path[8300];
	struct limits limits;
	struct stat seen;
	if (who(pod, container)) {
		printf("vcuda: no cgroup\n");
		return 1;
	}
	int outcome = call(argc > 1 ? argv[1] : pod, argc > 2 ? argv[2] : container);
	if (outcome) {
		printf("vcuda: %s\n", outcome > 0 ? "refused" : "nobody is there");
		return 1;
	}
	snprintf(path, sizeof path, FOLDER "%s/vcuda.config", container);
	int fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &seen) || seen.st_size != sizeof limits || take(fd, (void *)&limits, sizeof limits)) {
		printf("vcuda: no limits\n");
		return 1;
	}
	close(fd);
	printf("vcuda: pod %s container %s bus %s memory %llu cores %d hard %d limit %d driver %d.%d enable %d id %s pids",
	       limits.pod_uid, limits.container_name, limits.bus_id, (unsigned long long)limits.gpu_memory,
	       limits.utilization, limits.hard_limit, limits.limit, limits.driver_version.major,
	       limits.driver_version.minor, limits.enable, container);
	snprintf(path, sizeof path, FOLDER "%s/pids.config", container);
	fd = open(path, O_RDONLY);
	int pid;
	while (fd >= 0 && !take(fd, (void *)&pid, sizeof pid))
		printf(" %d", pid);
	printf("\n");
	return 0;
}
