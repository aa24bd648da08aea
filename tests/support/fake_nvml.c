/* A libnvidia-ml.so.1 for tests: what it answers stands in the file $FAKE_NVML, read again at every call, so that a test can break a
 * GPU while the agent runs. Own declarations of just what pynvml calls here; layouts as in the public NVML API reference.
 *
 *   gpu INDEX UUID PCI_ADDRESS MEMORY_MIB NAME...    one line per enumerated GPU
 *   error INDEX CODE                                 every query of that GPU fails so (15: GPU is lost)
 *   link INDEX LINK KIND PCI_ADDRESS                 an active NVLink; KIND 0: to a GPU, 2: to a switch
 *   holder INDEX PID                                 a process with a context on the GPU
 *   init CODE                                        nvmlInit fails so
 *   hang SECONDS                                     every count of devices takes so long
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;

typedef struct {
    unsigned long long total, free_bytes, used;
} Memory;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} Process;

/* A handle is index + 1: a null handle must stay invalid. */
typedef void *Handle;

static int next_line(FILE *file, const char *word, char *rest, size_t size) {
    char line[512];
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(word);
        if (strncmp(line, word, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(rest, size, "%s", line + length + 1);
            return 1;
        }
    }
    return 0;
}

static FILE *description(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "fake NVML: cannot open $FAKE_NVML\n");
        abort();
    }
    return file;
}

static int number(const char *word, int fallback) {
    char rest[512];
    FILE *file = description();
    int found = next_line(file, word, rest, sizeof rest) ? atoi(rest) : fallback;
    fclose(file);
    return found;
}

typedef struct {
    int index;
    char uuid[96], address[32], name[96];
    unsigned long long memory_mib;
} Gpu;

static int find(int index, const char *uuid, Gpu *gpu) {
    char rest[512];
    FILE *file = description();
    int found = 0;
    while (!found && next_line(file, "gpu", rest, sizeof rest)) {
        int scanned = sscanf(rest, "%d %95s %31s %llu %95[^\n]", &gpu->index, gpu->uuid, gpu->address, &gpu->memory_mib, gpu->name);
        found = scanned == 5 && (uuid ? strcmp(gpu->uuid, uuid) == 0 : gpu->index == index);
    }
    fclose(file);
    return found;
}

static int error_of(int index) {
    char rest[512];
    int which, code, found = OK;
    FILE *file = description();
    while (next_line(file, "error", rest, sizeof rest))
        if (sscanf(rest, "%d %d", &which, &code) == 2 && which == index) found = code;
    fclose(file);
    return found;
}

static int load(Handle handle, Gpu *gpu) {
    int index = (int)(long)handle - 1;
    if (!find(index, NULL, gpu)) return INVALID_ARGUMENT;
    return error_of(index);
}

static int put(char *to, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

static void put_pci(Pci *pci, const char *address) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", address);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("init", OK); }
int nvmlInit_v2(void) { return number("init", OK); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return put(to, size, "570.0.0"); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char rest[512];
    FILE *file = description();
    *count = 0;
    while (next_line(file, "gpu", rest, sizeof rest)) ++*count;
    fclose(file);
    sleep((unsigned)number("hang", 0));
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    Gpu gpu;
    *handle = (Handle)(long)(index + 1);
    return load(*handle, &gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle) {
    Gpu gpu;
    if (!find(-1, uuid, &gpu)) return NOT_FOUND;
    *handle = (Handle)(long)(gpu.index + 1);
    return error_of(gpu.index);
}

int nvmlDeviceGetUUID(Handle handle, char *to, unsigned size) {
    Gpu gpu;
    int code = load(handle, &gpu);
    return code ? code : put(to, size, gpu.uuid);
}

int nvmlDeviceGetName(Handle handle, char *to, unsigned size) {
    Gpu gpu;
    int code = load(handle, &gpu);
    return code ? code : put(to, size, gpu.name);
}

int nvmlDeviceGetPciInfo_v3(Handle handle, Pci *pci) {
    Gpu gpu;
    int code = load(handle, &gpu);
    if (!code) put_pci(pci, gpu.address);
    return code;
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory *memory) {
    Gpu gpu;
    int code = load(handle, &gpu);
    memory->total = gpu.memory_mib << 20;
    memory->used = 0;
    memory->free_bytes = memory->total;
    return code;
}

int nvmlDeviceGetMinorNumber(Handle handle, unsigned *minor) {
    Gpu gpu;
    int code = load(handle, &gpu);
    /* The driver numbers by slot: a hole stays where a GPU is gone. The address's bus digit stands for the slot here. */
    *minor = (unsigned)strtol(gpu.address + 9, NULL, 16);
    return code;
}

int nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
    Gpu gpu;
    *major = 9;
    *minor = 0;
    return load(handle, &gpu);
}

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    (void)handle;
    *current = *pending = 0;
    return NOT_SUPPORTED;
}

static int find_link(Handle handle, unsigned link, int *kind, char *address) {
    char rest[512];
    int which, number_of_link, found = 0, index = (int)(long)handle - 1;
    FILE *file = description();
    while (!found && next_line(file, "link", rest, sizeof rest))
        found = sscanf(rest, "%d %d %d %31s", &which, &number_of_link, kind, address) == 4 && which == index &&
                number_of_link == (int)link;
    fclose(file);
    return found;
}

int nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned *active) {
    Gpu gpu;
    int kind, code = load(handle, &gpu);
    char address[32];
    if (code) return code;
    if (link >= 18) return INVALID_ARGUMENT;
    *active = (unsigned)find_link(handle, link, &kind, address);
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned link, Pci *pci) {
    int kind;
    char address[32];
    if (!find_link(handle, link, &kind, address)) return NOT_SUPPORTED;
    put_pci(pci, address);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned link, int *kind) {
    char address[32];
    return find_link(handle, link, kind, address) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, Process *processes) {
    char rest[512];
    int which, pid, index = (int)(long)handle - 1;
    unsigned room = *count, found = 0;
    FILE *file = description();
    while (next_line(file, "holder", rest, sizeof rest))
        if (sscanf(rest, "%d %d", &which, &pid) == 2 && which == index) {
            if (found < room && processes) {
                memset(&processes[found], 0, sizeof *processes);
                processes[found].pid = (unsigned)pid;
            }
            ++found;
        }
    fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
