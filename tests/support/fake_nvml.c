/* A libnvidia-ml.so.1 for tests. What it answers stands in the file $FAKE_NVML, read again whenever it has changed, so that a test can
 * break a GPU while the agent runs. Own declarations of just what pynvml calls here; layouts as in the public NVML API reference, their
 * sizes told by fake_sizeof. Numbers are NVML's own. GPU -1 stands for the system (nvmlInit, nvmlSystem*, nvmlDeviceGetCount).
 *
 *   driver TEXT
 *   gpu INDEX UUID PCI_ADDRESS MEMORY_MIB NAME...    one line per enumerated GPU
 *   set GPU KEY NUMBER                               a figure; what is not set is "not supported". The last line holds
 *   links GPU COUNT                                  NVLink ports (18 if not said)
 *   link GPU LINK KIND PCI_ADDRESS [VERSION]         an active NVLink; KIND 0: to a GPU, 2: to a switch, -1: not told; "-": no address
 *   linkdown GPU LINK                                that port is inactive
 *   linkerror GPU LINK COUNTER NUMBER                nvmlNvLinkErrorCounter_t, or a field id of NVLink 5
 *   linkfail GPU LINK CODE                           the state of that port cannot be read
 *   path GPU GPU LEVEL / p2p GPU GPU STATUS [KIND]   of a pair, either way round; KIND 0: reading only, 1: writing only
 *   fabric GPU CLUSTER_UUID CLIQUE STATE STATUS MASK SUMMARY
 *   profile GPU NUMBER ID SLICES INSTANCES SMS MEMORY_MIB SIZE START,START,... NAME...
 *   instance GPU PLACE UUID GPU_INSTANCE COMPUTE_INSTANCE START SIZE PROFILE_ID PROFILE
 *   holder GPU PID [BYTES] / graphics GPU PID [BYTES]   a process that holds the GPU
 *   xid NUMBER GPU CODE                              an event; each NUMBER, counted up, is told once
 *   error GPU CODE                                   every query of that GPU fails so (15: GPU is lost)
 *   lost GPU                                         so it is lost, to this process for good: a reset is seen by a new one
 *   fail GPU FUNCTION CODE                           that one does; FUNCTION without _v2 and the like
 *   stall GPU FUNCTION SECONDS                       it takes so long, or until the line is gone
 *   sleep GPU FUNCTION SECONDS                       the same, but a call that has begun is not let go
 *   crash GPU FUNCTION                               the process ends in it
 *   noise GPU FUNCTION                               it prints something on stdout
 *   init CODE / hang SECONDS                         nvmlInit fails so; every count of devices takes so long
 *
 * OLD_DRIVER leaves out what drivers before 510 lack; NEW_DRIVER what NVIDIA announces to remove in CUDA 14.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMED_OUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25,
    XID_EVENT = 8, NVLINK_5 = 7, TEXT_MAX = 512, GPUS_MAX = 64
};

typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } Pci;
typedef struct { u64 total, free_bytes, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free_bytes, used; } MemoryV2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;
typedef union { double d; unsigned ui; u64 ull; long long sll; int si; unsigned short us; } Value;
typedef struct { unsigned field, scope; long long timestamp, latency_us; unsigned type, code; Value value; } Field;
typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
typedef struct { unsigned version; int celsius; } Margin;
typedef struct { unsigned char uuid[16]; unsigned status, clique; unsigned char state; } Fabric;
typedef struct { unsigned version; unsigned char uuid[16]; unsigned status, clique; unsigned char state; unsigned mask; } FabricV2;
typedef struct {
    unsigned version;
    unsigned char uuid[16];
    unsigned status, clique;
    unsigned char state; /* a byte, as in nvml.h; pynvml reads it with the three bytes after it, which are nobody's */
    unsigned mask;
    unsigned char summary;
} FabricV3;
typedef struct {
    unsigned char uuid[16];
    unsigned status;
    struct { unsigned char type; unsigned id; } cliques[64];
    unsigned clique_count;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
} FabricV4;
typedef struct { unsigned start, size; } Placement;
typedef struct { unsigned id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; u64 memory_mib; } Profile;
typedef struct {
    unsigned version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
    char name[96];
} ProfileV2;
typedef struct { void *device; unsigned id, profile; Placement placement; } InstanceInfo;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;

/* A GPU's handle is index + 1: a null handle must stay invalid. A MIG device's has its place + 1 above, a GPU instance's its id + 1. */
typedef void *Handle;
#define GPU_OF(handle) ((int)((unsigned long)(handle) & 0xff) - 1)
#define PART_OF(handle) ((int)((unsigned long)(handle) >> 8) - 1)
#define HANDLE(gpu, part) ((Handle)((unsigned long)((gpu) + 1) | (unsigned long)((part) + 1) << 8))

unsigned long fake_sizeof(const char *name) {
    static const struct { const char *name; unsigned long size; } sizes[] = {
        {"nvmlPciInfo_t", sizeof(Pci)}, {"c_nvmlMemory_t", sizeof(Memory)}, {"c_nvmlMemory_v2_t", sizeof(MemoryV2)},
        {"c_nvmlProcessInfo_v2_t", sizeof(Process)}, {"c_nvmlProcessInfo_v3_t", sizeof(Process)}, {"c_nvmlFieldValue_t", sizeof(Field)},
        {"c_nvmlTemperature_v1_t", sizeof(TemperatureV1)}, {"c_nvmlMarginTemperature_v1_t", sizeof(Margin)},
        {"c_nvmlGpuFabricInfo_t", sizeof(Fabric)}, {"c_nvmlGpuFabricInfo_v2_t", sizeof(FabricV2)},
        {"c_nvmlGpuFabricInfo_v3_t", sizeof(FabricV3)}, {"c_nvmlGpuFabricInfo_v4_t", sizeof(FabricV4)},
        {"c_nvmlGpuInstancePlacement_t", sizeof(Placement)},
        {"c_nvmlGpuInstanceProfileInfo_t", sizeof(Profile)}, {"c_nvmlGpuInstanceProfileInfo_v2_t", sizeof(ProfileV2)},
        {"c_nvmlGpuInstanceInfo_t", sizeof(InstanceInfo)}, {"c_nvmlEventData_t", sizeof(Event)},
    };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        if (strcmp(sizes[i].name, name) == 0) return sizes[i].size;
    return 0;
}

/* The description as it stands now. Earlier ones are kept: another thread may be reading them. */
static const char *description(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char *text;
    static struct stat seen;
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now) != 0) {
        fprintf(stderr, "fake NVML: no $FAKE_NVML\n");
        abort();
    }
    pthread_mutex_lock(&lock);
    if (!text || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec || now.st_mtim.tv_sec != seen.st_mtim.tv_sec ||
        now.st_size != seen.st_size || now.st_ino != seen.st_ino) {
        FILE *file = fopen(path, "r");
        char *fresh = calloc(1, (size_t)now.st_size + 1);
        if (!file || !fresh) abort();
        fresh[fread(fresh, 1, (size_t)now.st_size, file)] = 0;
        fclose(file);
        text = fresh;
        seen = now;
    }
    const char *current = text;
    pthread_mutex_unlock(&lock);
    return current;
}

/* The next line that begins with `word`: what follows it. `*at` is where to look on; start with description(). */
static int next_line(const char **at, const char *word, char *rest) {
    size_t length = strlen(word);
    while (**at) {
        const char *line = *at, *end = strchrnul(line, '\n');
        *at = *end ? end + 1 : end;
        if (strncmp(line, word, length) == 0 && line[length] == ' ') {
            snprintf(rest, TEXT_MAX, "%.*s", (int)(end - line - (long)length - 1), line + length + 1);
            return 1;
        }
    }
    return 0;
}

static long long number(const char *word, long long fallback) {
    char rest[TEXT_MAX];
    const char *at = description();
    while (next_line(&at, word, rest)) fallback = atoll(rest);
    return fallback;
}

static int setting(int gpu, const char *key, long long *value) {
    char rest[TEXT_MAX], name[64];
    const char *at = description();
    int which, found = 0;
    long long read;
    while (next_line(&at, "set", rest))
        if (sscanf(rest, "%d %63s %lld", &which, name, &read) == 3 && which == gpu && strcmp(name, key) == 0) *value = read, found = 1;
    return found;
}

typedef struct { int index; char uuid[96], address[32], name[96]; u64 memory_mib; } Gpu;

static int find(int index, Gpu *gpu) {
    char rest[TEXT_MAX];
    const char *at = description();
    while (next_line(&at, "gpu", rest))
        if (sscanf(rest, "%d %95s %31s %llu %95[^\n]", &gpu->index, gpu->uuid, gpu->address, &gpu->memory_mib, gpu->name) == 5 &&
            gpu->index == index)
            return 1;
    return 0;
}

/* A line "WORD GPU FUNCTION [NUMBER]" on this call. */
static int ordered(const char *word, int gpu, const char *function, long long *value) {
    char rest[TEXT_MAX], name[96];
    const char *at = description();
    int which, found = 0;
    while (next_line(&at, word, rest)) {
        long long read = 0;
        if (sscanf(rest, "%d %95s %lld", &which, name, &read) >= 2 && which == gpu && strcmp(name, function) == 0) *value = read, found = 1;
    }
    return found;
}

static void stall(int gpu, const char *function) {
    struct timespec from, now;
    long long seconds;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (now = from; ordered("stall", gpu, function, &seconds) && now.tv_sec - from.tv_sec < seconds; usleep(20000))
        clock_gettime(CLOCK_MONOTONIC, &now);
}

static int ordered_so(int gpu, const char *function) {
    long long value = 0;
    if (ordered("noise", gpu, function, &value) && write(1, "NVML: something happened\n", 25) != 25) abort();
    if (ordered("crash", gpu, function, &value)) raise(SIGKILL);
    if (ordered("sleep", gpu, function, &value)) sleep((unsigned)value);
    stall(gpu, function);
    return ordered("fail", gpu, function, &value) ? (int)value : OK;
}

static unsigned char lost[GPUS_MAX];

/* What every query of a GPU begins with. */
static int enter(Handle handle, const char *function, Gpu *gpu) {
    char rest[TEXT_MAX];
    int which, code, found;
    if (!find(GPU_OF(handle), gpu)) return INVALID_ARGUMENT;
    found = ordered_so(gpu->index, function);
    const char *at = description();
    while (next_line(&at, "error", rest))
        if (sscanf(rest, "%d %d", &which, &code) == 2 && which == gpu->index) found = code;
    at = description();
    while (next_line(&at, "lost", rest))
        if (atoi(rest) == gpu->index && gpu->index < GPUS_MAX) lost[gpu->index] = 1;
    return gpu->index < GPUS_MAX && lost[gpu->index] ? GPU_IS_LOST : found;
}

#define ENTER(function)                       \
    Gpu gpu;                                  \
    int code = enter(handle, function, &gpu); \
    if (code) return code;

static int put(char *to, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

static int put_number(int gpu, const char *key, unsigned *to) {
    long long value;
    if (!setting(gpu, key, &value)) return NOT_SUPPORTED;
    *to = (unsigned)value;
    return OK;
}

/* A query of one GPU that answers one number. */
#define NUMBER(symbol, function, key)               \
    int symbol(Handle handle, unsigned *value) {    \
        ENTER(function)                             \
        return put_number(gpu.index, key, value);   \
    }

static void put_pci(Pci *pci, const char *address) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", address);
    sscanf(address, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}

/* ---- the system ---- */

int nvmlInitWithFlags(unsigned flags) {
    int code = ordered_so(-1, "nvmlInit");
    (void)flags;
    return code ? code : (int)number("init", OK);
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    char rest[TEXT_MAX];
    const char *at = description();
    int code = ordered_so(-1, "nvmlSystemGetDriverVersion");
    return code ? code : put(to, size, next_line(&at, "driver", rest) ? rest : "570.0.0");
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char rest[TEXT_MAX];
    int code = ordered_so(-1, "nvmlDeviceGetCount");
    const char *at = description();
    for (*count = 0; next_line(&at, "gpu", rest);) ++*count;
    sleep((unsigned)number("hang", 0));
    return code;
}

/* ---- who a GPU is, and what it has ---- */

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *to) {
    Handle handle = *to = HANDLE(index, -1);
    ENTER("nvmlDeviceGetHandleByIndex")
    return OK;
}

static int instance_line(int gpu, int place, char uuid[96], unsigned numbers[5], char profile[64]) {
    char rest[TEXT_MAX];
    const char *at = description();
    int which, where;
    while (next_line(&at, "instance", rest))
        if (sscanf(rest, "%d %d %95s %u %u %u %u %u %63s", &which, &where, uuid, &numbers[0], &numbers[1], &numbers[2], &numbers[3],
                   &numbers[4], profile) == 9 && which == gpu && where == place)
            return 1;
    return 0;
}

int nvmlDeviceGetUUID(Handle handle, char *to, unsigned size) {
    char uuid[96], profile[64];
    unsigned numbers[5];
    ENTER("nvmlDeviceGetUUID")
    if (PART_OF(handle) < 0) return put(to, size, gpu.uuid);
    return instance_line(gpu.index, PART_OF(handle), uuid, numbers, profile) ? put(to, size, uuid) : NOT_FOUND;
}

int nvmlDeviceGetName(Handle handle, char *to, unsigned size) {
    char uuid[96], profile[64], name[192];
    unsigned numbers[5];
    ENTER("nvmlDeviceGetName")
    if (PART_OF(handle) < 0) return put(to, size, gpu.name);
    if (!instance_line(gpu.index, PART_OF(handle), uuid, numbers, profile)) return NOT_FOUND;
    snprintf(name, sizeof name, "%s MIG %s", gpu.name, profile);
    return put(to, size, name);
}

int nvmlDeviceGetPciInfo_v3(Handle handle, Pci *pci) {
    ENTER("nvmlDeviceGetPciInfo")
    put_pci(pci, gpu.address);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory *memory) {
    long long used = 0, reserved = 0;
    ENTER("nvmlDeviceGetMemoryInfo")
    setting(gpu.index, "memory_used", &used);
    setting(gpu.index, "memory_reserved", &reserved);
    memory->total = gpu.memory_mib << 20;
    memory->used = (u64)(used + reserved);
    memory->free_bytes = memory->total - memory->used;
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *memory) {
    long long used = 0, reserved = 0;
    ENTER("nvmlDeviceGetMemoryInfo")
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    setting(gpu.index, "memory_used", &used);
    setting(gpu.index, "memory_reserved", &reserved);
    memory->total = gpu.memory_mib << 20;
    memory->used = (u64)used;
    memory->reserved = (u64)reserved;
    memory->free_bytes = memory->total - memory->used - memory->reserved;
    return OK;
}
#endif

int nvmlDeviceGetMinorNumber(Handle handle, unsigned *minor) {
    ENTER("nvmlDeviceGetMinorNumber")
    /* The driver numbers by slot: a hole stays where a GPU is gone. The address's bus digit stands for the slot here. */
    if (put_number(gpu.index, "minor", minor) != OK) *minor = (unsigned)strtol(gpu.address + 9, NULL, 16);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
    long long capability = 90;
    ENTER("nvmlDeviceGetCudaComputeCapability")
    setting(gpu.index, "capability", &capability);
    *major = (int)capability / 10;
    *minor = (int)capability % 10;
    return OK;
}

#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetNumGpuCores, "nvmlDeviceGetNumGpuCores", "cores")
#endif
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit", "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "nvmlDeviceGetPowerManagementDefaultLimit", "power_default_mw")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", "pcie_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth", "pcie_width")

int nvmlDeviceGetPowerManagementLimitConstraints(Handle handle, unsigned *lowest, unsigned *highest) {
    ENTER("nvmlDeviceGetPowerManagementLimitConstraints")
    *lowest = 0;
    return put_number(gpu.index, "power_max_mw", highest);
}

int nvmlDeviceGetEccMode(Handle handle, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetEccMode")
    code = put_number(gpu.index, "ecc", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMemoryAffinity(Handle handle, unsigned words, u64 *nodes, unsigned scope) {
    unsigned node;
    ENTER("nvmlDeviceGetMemoryAffinity")
    (void)scope;
    memset(nodes, 0, words * sizeof *nodes);
    if (put_number(gpu.index, "numa", &node) != OK) return NOT_SUPPORTED;
    if (node / 64 >= words) return INVALID_ARGUMENT;
    nodes[node / 64] = 1ull << node % 64;
    return OK;
}

/* ---- what moves ---- */

#ifndef NEW_DRIVER
int nvmlDeviceGetTemperature(Handle handle, unsigned sensor, unsigned *celsius) {
    ENTER("nvmlDeviceGetTemperature")
    (void)sensor;
    return put_number(gpu.index, "temperature", celsius);
}
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons_number, "nvmlDeviceGetCurrentClocksThrottleReasons", "throttle")
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, u64 *reasons) {
    unsigned value = 0;
    int code = nvmlDeviceGetCurrentClocksThrottleReasons_number(handle, &value);
    *reasons = value;
    return code;
}
#endif
#ifndef OLD_DRIVER
int nvmlDeviceGetTemperatureV(Handle handle, TemperatureV1 *to) {
    ENTER("nvmlDeviceGetTemperatureV")
    if (to->version != (sizeof *to | 1u << 24)) return VERSION_MISMATCH;
    return put_number(gpu.index, "temperature", (unsigned *)&to->celsius);
}
int nvmlDeviceGetMarginTemperature(Handle handle, Margin *to) {
    ENTER("nvmlDeviceGetMarginTemperature")
    if (to->version != (sizeof *to | 1u << 24)) return VERSION_MISMATCH;
    return put_number(gpu.index, "margin", (unsigned *)&to->celsius);
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle handle, u64 *reasons) {
    unsigned value = 0;
    ENTER("nvmlDeviceGetCurrentClocksEventReasons")
    code = put_number(gpu.index, "throttle", &value);
    *reasons = value;
    return code;
}
#endif

int nvmlDeviceGetTemperatureThreshold(Handle handle, unsigned kind, unsigned *celsius) {
    ENTER("nvmlDeviceGetTemperatureThreshold")
    return kind == 1 ? put_number(gpu.index, "slowdown", celsius) : NOT_SUPPORTED;
}

NUMBER(nvmlDeviceGetPowerUsage, "nvmlDeviceGetPowerUsage", "power_mw")

int nvmlDeviceGetTotalEccErrors(Handle handle, unsigned kind, unsigned counter, u64 *count) {
    static const char *keys[2][2] = {{"ecc_corrected", "ecc_corrected_aggregate"}, {"ecc_uncorrected", "ecc_uncorrected_aggregate"}};
    long long value;
    ENTER("nvmlDeviceGetTotalEccErrors")
    if (kind > 1 || counter > 1) return INVALID_ARGUMENT;
    if (!setting(gpu.index, keys[kind][counter], &value)) return NOT_SUPPORTED;
    *count = (u64)value;
    return OK;
}

int nvmlDeviceGetRetiredPages(Handle handle, unsigned cause, unsigned *count, u64 *addresses) {
    unsigned pages, room = *count;
    ENTER("nvmlDeviceGetRetiredPages")
    code = put_number(gpu.index, cause ? "retired_double" : "retired_single", &pages);
    if (code) return code;
    *count = pages;
    if (room < pages) return INSUFFICIENT_SIZE;
    for (unsigned page = 0; page < pages && addresses; ++page) addresses[page] = page << 16;
    return OK;
}
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus", "retired_pending")

int nvmlDeviceGetRemappedRows(Handle handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    ENTER("nvmlDeviceGetRemappedRows")
    *uncorrectable = *pending = *failed = 0;
    code = put_number(gpu.index, "remapped_correctable", correctable);
    put_number(gpu.index, "remapped_uncorrectable", uncorrectable);
    put_number(gpu.index, "remap_pending", pending);
    put_number(gpu.index, "remap_failed", failed);
    return code;
}

static int processes(int gpu, const char *word, unsigned *count, Process *to) {
    char rest[TEXT_MAX];
    int which, pid;
    unsigned room = *count, found = 0;
    const char *at = description();
    while (next_line(&at, word, rest)) {
        u64 bytes = ~0ull; /* not told */
        if (sscanf(rest, "%d %d %llu", &which, &pid, &bytes) < 2 || which != gpu) continue;
        if (found < room && to) to[found] = (Process){(unsigned)pid, bytes, ~0u, ~0u};
        ++found;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(symbol, function, word)                             \
    int symbol(Handle handle, unsigned *count, Process *to) {         \
        ENTER(function)                                               \
        return processes(gpu.index, word, count, to);                 \
    }
#ifdef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "nvmlDeviceGetComputeRunningProcesses", "holder")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "nvmlDeviceGetGraphicsRunningProcesses", "graphics")
#else
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "nvmlDeviceGetComputeRunningProcesses", "holder")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "nvmlDeviceGetGraphicsRunningProcesses", "graphics")
#endif

/* ---- NVLink ---- */

static int link_count(int gpu) {
    char rest[TEXT_MAX];
    int which, read, count = 18;
    const char *at = description();
    while (next_line(&at, "links", rest))
        if (sscanf(rest, "%d %d", &which, &read) == 2 && which == gpu) count = read;
    return count;
}

static int find_link(int gpu, unsigned link, int *kind, char *address, unsigned *version) {
    char rest[TEXT_MAX];
    int which;
    unsigned port;
    const char *at = description();
    *version = 4;
    while (next_line(&at, "link", rest))
        if (sscanf(rest, "%d %u %d %31s %u", &which, &port, kind, address, version) >= 4 && which == gpu && port == link) return 1;
    return 0;
}

static int link_error(int gpu, unsigned link, unsigned counter, u64 *count) {
    char rest[TEXT_MAX];
    int which, found = 0;
    unsigned port, of;
    u64 read;
    const char *at = description();
    while (next_line(&at, "linkerror", rest))
        if (sscanf(rest, "%d %u %u %llu", &which, &port, &of, &read) == 4 && which == gpu && port == link && of == counter)
            *count = read, found = 1;
    return found;
}

#define ENTER_LINK(function)                                                       \
    int kind;                                                                      \
    unsigned version;                                                              \
    char address[32];                                                              \
    ENTER(function)                                                                \
    if (link_count(gpu.index) == 0) return NOT_SUPPORTED;                          \
    if (link >= (unsigned)link_count(gpu.index)) return INVALID_ARGUMENT;          \
    int there = find_link(gpu.index, link, &kind, address, &version);

int nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned *active) {
    char rest[TEXT_MAX];
    int which;
    unsigned port;
    ENTER_LINK("nvmlDeviceGetNvLinkState")
    *active = (unsigned)there;
    const char *at = description();
    while (next_line(&at, "linkdown", rest))
        if (sscanf(rest, "%d %u", &which, &port) == 2 && which == gpu.index && port == link) *active = 0;
    at = description();
    while (next_line(&at, "linkfail", rest))
        if (sscanf(rest, "%d %u %d", &which, &port, &code) == 3 && which == gpu.index && port == link) return code;
    return OK;
}

int nvmlDeviceGetNvLinkVersion(Handle handle, unsigned link, unsigned *to) {
    ENTER_LINK("nvmlDeviceGetNvLinkVersion")
    *to = version;
    return there ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned link, Pci *pci) {
    ENTER_LINK("nvmlDeviceGetNvLinkRemotePciInfo")
    if (!there || strcmp(address, "-") == 0) return NOT_SUPPORTED;
    put_pci(pci, address);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned link, int *to) {
    ENTER_LINK("nvmlDeviceGetNvLinkRemoteDeviceType")
    *to = kind;
    return there && kind >= 0 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkErrorCounter(Handle handle, unsigned link, unsigned counter, u64 *count) {
    ENTER_LINK("nvmlDeviceGetNvLinkErrorCounter")
    *count = 0;
    if (there && version >= NVLINK_5) return NOT_SUPPORTED; /* they are fields there */
    return link_error(gpu.index, link, counter, count) || there ? OK : NOT_SUPPORTED;
}

/* 82: memory temperature. 91: number of NVLinks. 208, 211, 215, 219: errors of an NVLink 5, its number the scope. */
int nvmlDeviceGetFieldValues(Handle handle, int count, Field *fields) {
    ENTER("nvmlDeviceGetFieldValues")
    for (int i = 0; i < count; ++i) {
        Field *field = &fields[i];
        int kind;
        unsigned version;
        char address[32];
        field->code = NOT_SUPPORTED;
        field->type = 1;
        field->value.ull = 0;
        if (field->field == 82) field->code = (unsigned)put_number(gpu.index, "memory_temperature", &field->value.ui);
        if (field->field == 91) field->code = (unsigned)put_number(gpu.index, "link_count", &field->value.ui);
        if (field->field >= 206 && field->field <= 222 && find_link(gpu.index, field->scope, &kind, address, &version) && version >= NVLINK_5) {
            field->type = 3;
            field->code = OK;
            link_error(gpu.index, field->scope, field->field, &field->value.ull);
        }
    }
    return OK;
}

/* ---- pairs of GPUs ---- */

static int pair(const char *word, int a, int b, unsigned kind, unsigned *value) {
    char rest[TEXT_MAX];
    int x, y, found = 0;
    unsigned read, of;
    const char *at = description();
    while (next_line(&at, word, rest)) {
        int fields = sscanf(rest, "%d %d %u %u", &x, &y, &read, &of);
        if (fields >= 3 && ((x == a && y == b) || (x == b && y == a)) && (fields == 3 || of == kind)) *value = read, found = 1;
    }
    return found ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle handle, Handle other, unsigned *level) {
    ENTER("nvmlDeviceGetTopologyCommonAncestor")
    return pair("path", gpu.index, GPU_OF(other), 0, level);
}

int nvmlDeviceGetP2PStatus(Handle handle, Handle other, unsigned kind, unsigned *status) {
    ENTER("nvmlDeviceGetP2PStatus")
    if (kind > 1) return INVALID_ARGUMENT;
    return pair("p2p", gpu.index, GPU_OF(other), kind, status);
}

/* ---- the multi-node NVLink fabric ---- */

#ifndef OLD_DRIVER
static int fabric_line(int gpu, FabricV3 *to) {
    char rest[TEXT_MAX], uuid[64];
    int which, found = 0;
    unsigned clique, state, status, mask, summary;
    const char *at = description();
    while (next_line(&at, "fabric", rest)) {
        if (sscanf(rest, "%d %63s %u %u %u %u %u", &which, uuid, &clique, &state, &status, &mask, &summary) != 7 || which != gpu) continue;
        const char *digit = uuid;
        for (int i = 0; i < 16; ++i, digit += 2) {
            unsigned byte = 0;
            while (*digit == '-') ++digit;
            sscanf(digit, "%2x", &byte);
            to->uuid[i] = (unsigned char)byte;
        }
        to->clique = clique, to->state = (unsigned char)state, to->status = status, to->mask = mask, to->summary = (unsigned char)summary;
        found = 1;
    }
    return found ? OK : NOT_SUPPORTED;
}

#ifdef NEW_DRIVER
int nvmlDeviceGetGpuFabricInfo_v4(Handle handle, FabricV4 *to) {
    FabricV3 found = {0};
    ENTER("nvmlDeviceGetGpuFabricInfo_v4")
    code = fabric_line(gpu.index, &found);
    if (code) return code;
    memcpy(to->uuid, found.uuid, sizeof to->uuid);
    to->status = found.status, to->state = found.state, to->mask = found.mask, to->summary = found.summary;
    /* 1: for multicast, 0: for plain loads and stores */
    to->cliques[0].type = 1, to->cliques[0].id = found.clique + 100;
    to->cliques[1].type = 0, to->cliques[1].id = found.clique;
    to->clique_count = 2;
    return OK;
}
#else
int nvmlDeviceGetGpuFabricInfoV(Handle handle, FabricV3 *to) {
    FabricV3 found;
    long long newest = 3;
    ENTER("nvmlDeviceGetGpuFabricInfoV")
    memset(&found, 0xAA, sizeof found);
    setting(-1, "fabric_version", &newest);
    unsigned version = to->version >> 24, size = to->version & 0xffffff;
    if (version > newest || size != (version == 3 ? sizeof(FabricV3) : sizeof(FabricV2))) return VERSION_MISMATCH;
    found.version = to->version;
    code = fabric_line(gpu.index, &found);
    if (!code) memcpy(to, &found, size); /* the second version is the third without its last field */
    return code;
}
int nvmlDeviceGetGpuFabricInfo(Handle handle, Fabric *to) {
    FabricV3 found = {0};
    ENTER("nvmlDeviceGetGpuFabricInfo")
    code = fabric_line(gpu.index, &found);
    if (code) return code;
    memcpy(to->uuid, found.uuid, sizeof to->uuid);
    to->status = found.status, to->clique = found.clique, to->state = found.state;
    return code;
}
#endif
#endif

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetMigMode")
    code = put_number(gpu.index, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    ENTER("nvmlDeviceGetMaxMigDeviceCount")
    return put_number(gpu.index, "mig_max", count);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned place, Handle *to) {
    char uuid[96], profile[64];
    unsigned numbers[5];
    ENTER("nvmlDeviceGetMigDeviceHandleByIndex")
    *to = HANDLE(gpu.index, (int)place);
    return instance_line(gpu.index, (int)place, uuid, numbers, profile) ? OK : NOT_FOUND;
}

static int instance_number(Handle handle, const char *function, int which, unsigned *to) {
    char uuid[96], profile[64];
    unsigned numbers[5];
    ENTER(function)
    if (!instance_line(gpu.index, PART_OF(handle), uuid, numbers, profile)) return INVALID_ARGUMENT;
    *to = numbers[which];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Handle handle, unsigned *id) { return instance_number(handle, "nvmlDeviceGetGpuInstanceId", 0, id); }
int nvmlDeviceGetComputeInstanceId(Handle handle, unsigned *id) { return instance_number(handle, "nvmlDeviceGetComputeInstanceId", 1, id); }

int nvmlDeviceGetGpuInstanceById(Handle handle, unsigned id, Handle *to) {
    ENTER("nvmlDeviceGetGpuInstanceById")
    *to = HANDLE(gpu.index, (int)id);
    return OK;
}

int nvmlGpuInstanceGetInfo(Handle handle, InstanceInfo *info) {
    char uuid[96], profile[64];
    unsigned numbers[5];
    ENTER("nvmlGpuInstanceGetInfo")
    for (int place = 0; place < GPUS_MAX; ++place)
        if (instance_line(gpu.index, place, uuid, numbers, profile) && (int)numbers[0] == PART_OF(handle)) {
            *info = (InstanceInfo){HANDLE(gpu.index, -1), numbers[0], numbers[4], {numbers[2], numbers[3]}};
            return OK;
        }
    return NOT_FOUND;
}

/* The profile of that number (NVML_GPU_INSTANCE_PROFILE_*), or by its id where `number` is -1. */
static int profile_line(int gpu, int number_of, unsigned id, ProfileV2 *to, unsigned *size, char starts[64]) {
    char rest[TEXT_MAX], name[64];
    int which, which_number;
    const char *at = description();
    while (next_line(&at, "profile", rest)) {
        if (sscanf(rest, "%d %d %u %u %u %u %llu %u %63s %63[^\n]", &which, &which_number, &to->id, &to->slices, &to->instances, &to->sms,
                   &to->memory_mib, size, starts, name) != 10 || which != gpu)
            continue;
        if (number_of < 0 ? to->id != id : which_number != number_of) continue;
        snprintf(to->name, sizeof to->name, "MIG %s", name);
        return OK;
    }
    return NOT_SUPPORTED;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetGpuInstanceProfileInfoV(Handle handle, unsigned number_of, ProfileV2 *to) {
    char starts[64];
    unsigned size;
    ENTER("nvmlDeviceGetGpuInstanceProfileInfo")
    if (to->version != (sizeof *to | 2u << 24)) return VERSION_MISMATCH;
    return profile_line(gpu.index, (int)number_of, 0, to, &size, starts);
}
#endif

int nvmlDeviceGetGpuInstanceProfileInfo(Handle handle, unsigned number_of, Profile *to) {
    char starts[64];
    unsigned size;
    ProfileV2 found = {0};
    ENTER("nvmlDeviceGetGpuInstanceProfileInfo")
    code = profile_line(gpu.index, (int)number_of, 0, &found, &size, starts);
    *to = (Profile){.id = found.id, .slices = found.slices, .instances = found.instances, .sms = found.sms, .memory_mib = found.memory_mib};
    return code;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle handle, unsigned id, Placement *to, unsigned *count) {
    char starts[64], *save = NULL;
    unsigned size, found = 0;
    ProfileV2 profile;
    ENTER("nvmlDeviceGetGpuInstancePossiblePlacements")
    code = profile_line(gpu.index, -1, id, &profile, &size, starts);
    if (code) return code;
    for (char *start = strtok_r(starts, ",", &save); start; start = strtok_r(NULL, ",", &save), ++found)
        if (to && found < *count) to[found] = (Placement){(unsigned)atoi(start), size};
    *count = found;
    return OK;
}

/* ---- events: one set ---- */

static unsigned char watched[GPUS_MAX];
static long long told;

int nvmlEventSetCreate(Handle *set) {
    char rest[TEXT_MAX];
    const char *at = description();
    /* What happened before is not recorded. */
    while (next_line(&at, "xid", rest)) told = atoll(rest) > told ? atoll(rest) : told;
    *set = (Handle)watched;
    return ordered_so(-1, "nvmlEventSetCreate");
}
int nvmlEventSetFree(Handle set) { (void)set; return OK; }

int nvmlDeviceGetSupportedEventTypes(Handle handle, u64 *types) {
    ENTER("nvmlDeviceGetSupportedEventTypes")
    *types = XID_EVENT | 2;
    return OK;
}

int nvmlDeviceRegisterEvents(Handle handle, u64 types, Handle set) {
    ENTER("nvmlDeviceRegisterEvents")
    if (set != (Handle)watched || gpu.index >= GPUS_MAX) return INVALID_ARGUMENT;
    watched[gpu.index] = (types & XID_EVENT) != 0;
    return OK;
}

int nvmlEventSetWait_v2(Handle set, Event *event, unsigned milliseconds) {
    char rest[TEXT_MAX];
    int gpu, code = ordered_so(-1, "nvmlEventSetWait");
    long long at_number, xid;
    if (code) return code;
    if (set != (Handle)watched) return INVALID_ARGUMENT;
    for (unsigned waited = 0;; waited += 10) {
        const char *at = description();
        while (next_line(&at, "xid", rest)) {
            if (sscanf(rest, "%lld %d %lld", &at_number, &gpu, &xid) != 3 || at_number <= told) continue;
            told = at_number;
            if (gpu < 0 || gpu >= GPUS_MAX || !watched[gpu]) continue;
            *event = (Event){HANDLE(gpu, -1), XID_EVENT, (u64)xid, ~0u, ~0u};
            return OK;
        }
        if (waited >= milliseconds) return TIMED_OUT;
        usleep(10000);
    }
}
