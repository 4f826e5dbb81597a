/* A simulated libnvidia-ml.so.1: answers what pynvml asks from a text file, so that the real probe runs without a GPU.
 *
 *   gcc -O2 -Wall -shared -fPIC -pthread -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml_stub.c
 *
 * The fleet file is $NVML_STUB_FLEET, else /run/nvml/fleet.txt.  It is read at nvmlInit and again
 * whenever it changed (so a test can change loads while a program runs).  No file: nvmlInit says
 * DRIVER_NOT_LOADED (9), as a machine with the library but no driver does.  One item a line; '#' comments:
 *
 *   driver 550.54.15
 *   cuda 12040
 *   init_error 18                 # nvmlInit fails with this code (9 driver, 18 version mismatch, 999 ...)
 *   delay_ms 200                  # every call takes this long (a sick driver)
 *   sick nvmlInit hang            # what calls of this name (or `*`) do: hang, crash (SIGSEGV), abort, slow=MS, or
 *   sick * stuck=/dead/x gpu=3    #  stuck=FILE: they open FILE, on a file system that never answers (tests/support/
 *                                 #  dead_files): the process is in state D, and SIGKILL does not end it.  gpu=N: only
 *                                 #  calls on that GPU; to find a UUID, NVML touches all GPUs before its own
 *   loaded 2                      # so many times was the driver loaded: who had it open before gets UNKNOWN (999)
 *   gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-aaaa mem=81559 used=1024 reserved=551 util=7 memutil=2 temp=33 power=71000
 *       limit=700000 cc=9.0 bus=0000:18:00.0 mode=0 mig=0 numa=0 minor=0 serial=165 arch=9 error=0
 *                                 # (one line; all keys optional; mem/used/reserved in MiB, power/limit in mW, mode 0 default
 *                                 #  1 threads 2 prohibited 3 exclusive; error=15: every call on it says GPU_IS_LOST)
 *                                 # (reasons: bits of nvmlClocksEventReasons; heat_ms: how long heat has held its clocks;
 *                                 #  energy: used since the driver was loaded, in mJ; lanes: of PCIe, of 16; gen: its
 *                                 #  generation, of 4; links_down: so many of its NVLinks, the last ones; slow_link: MB/s
 *                                 #  of the first one; fields=0: a driver without nvmlDeviceGetFieldValues; sm, tensor,
 *                                 #  dram: it has GPM, in percent; gpm_error=19: another program has it)
 *   proc gpu=0 pid=4711 mem=500   # a compute process (mem in MiB); graphics=1: a desktop; gi=7: in that MIG instance
 *   mig gpu=0 uuid=MIG-bbbb name="NVIDIA H100 80GB HBM3 MIG 1g.10gb" mem=9728 used=12 gi=7 ci=0
 *   topo 0 1 10                   # common ancestor: 0 internal 10 one switch 20 several 30 host bridge 40 NUMA node 50 system
 *   nvlink 0 1 18                 # 18 active links between the two
 *   xid 0 79                      # GPU 0 has had this error: who has asked for its events hears of those lines that
 *                                 #  were not there when he did; `xid 0 31 7 0`: of that GPU instance and compute instance
 */
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINIT = 1, INVALID = 2, NOTSUP = 3, NOTFOUND = 6, TOOSMALL = 7, NODRIVER = 9 };
#define MAXG 64
#define MAXP 256
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct gpu {
    char name[96], uuid[96], bus[48], serial[48];
    u64 mem, used, reserved;                    /* bytes */
    u32 util, memutil, temp, power, limit, ccmaj, ccmin, mode, mig, minor, numa, arch, error, gi, ci, index, reasons, heat, lanes;
    u32 gen, links_down, slow_link, fields, gpm, gpm_error;
    double sm, tensor, dram;
    u64 energy;
    struct gpu *parent;                         /* for a MIG device */
} Gpu;
typedef Gpu *Dev;
static struct { int gpu; u32 pid, gi, graphics; u64 mem; } procs[MAXP];
static Gpu gpus[MAXG], migs[MAXG];
static struct { char call[64], how[16], file[128]; int gpu; u32 ms; } ills[8];
static struct { int gpu; u32 number, gi, ci; } xids[MAXP];
static int nill, ngpu, nmig, nproc, nxid, refs, topo[MAXG][MAXG], links[MAXG][MAXG];
static u32 init_error, delay_ms, cuda = 12040, loaded, opened;
static char driver[80] = "550.54.15";
static struct timespec seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *value(const char *line, const char *key, char *buf, size_t n)
{   /* key=value or key="va lue" */
    size_t k = strlen(key);
    for (const char *p = line; (p = strstr(p, key)); p++) {
        if ((p != line && !isspace((unsigned char)p[-1])) || p[k] != '=') continue;
        p += k + 1;
        char end = ' ';
        if (*p == '"') end = *p++;
        size_t i = 0;
        while (*p && *p != '\n' && *p != end && i + 1 < n) buf[i++] = *p++;
        buf[i] = 0;
        return buf;
    }
    return NULL;
}
static u64 number(const char *line, const char *key, u64 dflt)
{
    char b[64];
    return value(line, key, b, sizeof b) ? strtoull(b, NULL, 0) : dflt;
}
static void text(const char *line, const char *key, char *dst, size_t n, const char *dflt)
{
    if (!value(line, key, dst, n)) snprintf(dst, n, "%s", dflt);
}

static int load(void)
{
    const char *path = getenv("NVML_STUB_FLEET");
    if (!path) path = "/run/nvml/fleet.txt";
    struct stat st;
    if (stat(path, &st)) return NODRIVER;
    if (refs && st.st_mtim.tv_sec == seen.tv_sec && st.st_mtim.tv_nsec == seen.tv_nsec) return OK;
    FILE *f = fopen(path, "r");
    if (!f) return NODRIVER;
    seen = st.st_mtim;
    ngpu = nmig = nproc = nill = nxid = 0;
    init_error = delay_ms = loaded = 0;
    memset(gpus, 0, sizeof gpus); memset(migs, 0, sizeof migs); memset(links, 0, sizeof links);
    for (int i = 0; i < MAXG; i++) for (int j = 0; j < MAXG; j++) topo[i][j] = 50;
    char l[1024];
    while (fgets(l, sizeof l, f)) {
        char word[32] = "", b[48];
        int a, c, v;
        if (l[0] == '#' || sscanf(l, "%31s", word) != 1) continue;
        if (!strcmp(word, "driver")) sscanf(l, "%*s %79s", driver);
        else if (!strcmp(word, "cuda")) sscanf(l, "%*s %u", &cuda);
        else if (!strcmp(word, "init_error")) sscanf(l, "%*s %u", &init_error);
        else if (!strcmp(word, "delay_ms")) sscanf(l, "%*s %u", &delay_ms);
        else if (!strcmp(word, "loaded")) sscanf(l, "%*s %u", &loaded);
        else if (!strcmp(word, "sick") && nill < 8 && sscanf(l, "%*s %63s %15[a-z]", ills[nill].call, ills[nill].how) == 2) {
            text(l, "stuck", ills[nill].file, sizeof ills[nill].file, "");
            ills[nill].ms = (u32)number(l, "slow", 0);
            ills[nill++].gpu = (int)number(l, "gpu", MAXG);
        }
        else if (!strcmp(word, "topo") && sscanf(l, "%*s %d %d %d", &a, &c, &v) == 3 && a >= 0 && a < MAXG && c >= 0 && c < MAXG)
            topo[a][c] = topo[c][a] = v;
        else if (!strcmp(word, "xid") && nxid < MAXP) {
            xids[nxid].gi = xids[nxid].ci = 0xFFFFFFFF;
            nxid += sscanf(l, "%*s %d %u %u %u", &xids[nxid].gpu, &xids[nxid].number, &xids[nxid].gi, &xids[nxid].ci) >= 2;
        }
        else if (!strcmp(word, "nvlink") && sscanf(l, "%*s %d %d %d", &a, &c, &v) == 3 && a >= 0 && a < MAXG && c >= 0 && c < MAXG)
            links[a][c] = links[c][a] = v;
        else if (!strcmp(word, "proc") && nproc < MAXP) {
            procs[nproc].gpu = (int)number(l, "gpu", 0);
            procs[nproc].pid = (u32)number(l, "pid", 1);
            procs[nproc].gi = (u32)number(l, "gi", 0xFFFFFFFF);
            procs[nproc].graphics = (u32)number(l, "graphics", 0);
            procs[nproc++].mem = number(l, "mem", 0) << 20;
        } else if ((!strcmp(word, "gpu") && ngpu < MAXG) || (!strcmp(word, "mig") && nmig < MAXG)) {
            int m = word[0] == 'm', i = m ? nmig++ : ngpu++;
            Gpu *g = m ? &migs[i] : &gpus[i];
            snprintf(b, sizeof b, m ? "MIG-%08x-stub" : "GPU-%08x-stub-0000-0000-000000000000", i);
            text(l, "name", g->name, sizeof g->name, "NVIDIA Stub GPU");
            text(l, "uuid", g->uuid, sizeof g->uuid, b);
            snprintf(b, sizeof b, "0000:%02X:00.0", i + 1);
            text(l, "bus", g->bus, sizeof g->bus, b);
            text(l, "serial", g->serial, sizeof g->serial, "0");
            g->reasons = (u32)number(l, "reasons", 0);
            g->heat = (u32)number(l, "heat_ms", 0);
            g->gen = (u32)number(l, "gen", 4); g->links_down = (u32)number(l, "links_down", 0);
            g->slow_link = (u32)number(l, "slow_link", 0); g->fields = (u32)number(l, "fields", 1);
            g->gpm = value(l, "sm", b, sizeof b) != NULL; g->gpm_error = (u32)number(l, "gpm_error", 0);
            g->sm = (double)number(l, "sm", 0); g->tensor = (double)number(l, "tensor", 0);
            g->dram = (double)number(l, "dram", 0);
            g->lanes = (u32)number(l, "lanes", 16); g->energy = number(l, "energy", 0);
            g->mem = number(l, "mem", 16384) << 20;
            g->used = number(l, "used", 0) << 20;
            g->reserved = number(l, "reserved", 0) << 20;
            g->util = number(l, "util", 0); g->memutil = number(l, "memutil", 0); g->temp = number(l, "temp", 30);
            g->power = number(l, "power", 50000); g->limit = number(l, "limit", 400000);
            g->mode = number(l, "mode", 0); g->mig = number(l, "mig", 0); g->minor = number(l, "minor", i);
            g->numa = number(l, "numa", 0); g->arch = number(l, "arch", 7); g->error = number(l, "error", 0);
            g->gi = number(l, "gi", i); g->ci = number(l, "ci", 0); g->index = i;
            if (sscanf(value(l, "cc", b, sizeof b) ? b : "8.0", "%u.%u", &g->ccmaj, &g->ccmin) != 2) g->ccmin = 0;
            if (m) {
                int p = (int)number(l, "gpu", 0);
                g->parent = &gpus[p >= 0 && p < MAXG ? p : 0];
                g->index = 0;
                for (int k = 0; k < i; k++) g->index += migs[k].parent == g->parent;
            }
        }
    }
    fclose(f);
    return OK;
}

static void sick(const char *call, int gpu)
{
    for (int i = 0; i < nill; i++) {
        if (ills[i].gpu != MAXG && ills[i].gpu != gpu) continue;
        if (strcmp(ills[i].call, "*") && strncmp(ills[i].call, call, strlen(ills[i].call))) continue;
        if (!strcmp(ills[i].how, "hang")) for (;;) pause();
        if (!strcmp(ills[i].how, "stuck")) open(ills[i].file, O_RDONLY);
        if (!strcmp(ills[i].how, "crash")) *(volatile int *)8 = 0;
        if (!strcmp(ills[i].how, "abort")) abort();
        if (!strcmp(ills[i].how, "slow")) nanosleep(&(struct timespec){ ills[i].ms / 1000, ills[i].ms % 1000 * 1000000L }, NULL);
    }
}
static int ready(void)
{
    pthread_mutex_lock(&lock);
    int r = refs ? load() : UNINIT;
    if (!r && loaded != opened) r = 999;
    pthread_mutex_unlock(&lock);
    if (delay_ms) nanosleep(&(struct timespec){ delay_ms / 1000, delay_ms % 1000 * 1000000L }, NULL);
    return r;
}
static int device(Dev d)
{
    int r = ready();
    if (r) return r;
    if (!(d >= gpus && d < gpus + ngpu) && !(d >= migs && d < migs + nmig)) return INVALID;
    return (int)(d->parent ? d->parent->error : d->error);
}
#define API __attribute__((visibility("default"))) int
#define SYS do { int r_ = ready(); if (r_) return r_; sick(__func__, -1); } while (0)
#define DEV do { int r_ = device(d); if (r_) return r_; sick(__func__, (int)((d->parent ? d->parent : d) - gpus)); } while (0)
#define PHYS do { DEV; if (d->parent) return NOTSUP; } while (0)
static int put(char *dst, u32 n, const char *s)
{
    if (!dst) return INVALID;
    if (strlen(s) + 1 > n) return TOOSMALL;
    strcpy(dst, s);
    return OK;
}

/* ---- library */
API nvmlInitWithFlags(u32 flags)
{
    pthread_mutex_lock(&lock);
    int r = load();
    if (!r && init_error) r = (int)init_error;
    if (!r) sick("nvmlInit", -1);
    if (!r && !refs++) opened = loaded;
    pthread_mutex_unlock(&lock);
    return r;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int r = refs ? (refs--, OK) : UNINIT;
    pthread_mutex_unlock(&lock);
    return r;
}
const char *nvmlErrorString(int e)
{
    switch (e) {
    case 0: return "Success"; case 1: return "Uninitialized"; case 2: return "Invalid Argument";
    case 3: return "Not Supported"; case 4: return "Insufficient Permissions"; case 6: return "Not Found";
    case 7: return "Insufficient Size"; case 9: return "Driver Not Loaded"; case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found"; case 13: return "Function Not Found"; case 15: return "GPU is lost";
    case 16: return "GPU requires reset"; case 18: return "Driver/library version mismatch"; default: return "Unknown Error";
    }
}
API nvmlSystemGetDriverVersion(char *s, u32 n) { SYS; return put(s, n, driver); }
API nvmlSystemGetNVMLVersion(char *s, u32 n) { SYS; char b[96]; snprintf(b, sizeof b, "%u.%s", cuda / 1000, driver); return put(s, n, b); }
API nvmlSystemGetCudaDriverVersion_v2(int *v) { SYS; *v = (int)cuda; return OK; }
API nvmlSystemGetCudaDriverVersion(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }
API nvmlSystemGetProcessName(u32 pid, char *s, u32 n)
{
    SYS;
    char p[64], b[256] = "";
    snprintf(p, sizeof p, "/proc/%u/comm", pid);
    FILE *f = fopen(p, "r");
    if (!f) return NOTFOUND;
    if (fgets(b, sizeof b, f)) b[strcspn(b, "\n")] = 0;
    fclose(f);
    return put(s, n, b);
}
API nvmlDeviceGetCount_v2(u32 *n) { SYS; *n = (u32)ngpu; return OK; }
API nvmlDeviceGetCount(u32 *n) { return nvmlDeviceGetCount_v2(n); }
API nvmlDeviceGetHandleByIndex_v2(u32 i, Dev *d) { SYS; sick(__func__, (int)i); if (i >= (u32)ngpu) return INVALID; *d = &gpus[i]; return gpus[i].error == 15 ? 15 : OK; }
API nvmlDeviceGetHandleByIndex(u32 i, Dev *d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
API nvmlDeviceGetHandleByUUID(const char *u, Dev *d)
{
    SYS;
    for (int i = 0; i < ngpu; i++) { sick(__func__, i); if (!strcmp(gpus[i].uuid, u)) { *d = &gpus[i]; return OK; } }
    for (int i = 0; i < nmig; i++) if (!strcmp(migs[i].uuid, u)) { *d = &migs[i]; return OK; }
    return NOTFOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *b, Dev *d)
{
    SYS;
    for (int i = 0; i < ngpu; i++) if (strlen(b) >= 7 && !strcasecmp(gpus[i].bus + strlen(gpus[i].bus) - 7, b + strlen(b) - 7)) { *d = &gpus[i]; return OK; }
    return NOTFOUND;
}

/* ---- one device */
API nvmlDeviceGetName(Dev d, char *s, u32 n) { DEV; return put(s, n, d->name); }
API nvmlDeviceGetUUID(Dev d, char *s, u32 n) { DEV; return put(s, n, d->uuid); }
API nvmlDeviceGetSerial(Dev d, char *s, u32 n) { PHYS; return strcmp(d->serial, "0") ? put(s, n, d->serial) : NOTSUP; }
API nvmlDeviceGetIndex(Dev d, u32 *v) { DEV; *v = d->index; return OK; }
API nvmlDeviceGetMinorNumber(Dev d, u32 *v) { PHYS; *v = d->minor; return OK; }
API nvmlDeviceGetBrand(Dev d, u32 *v) { DEV; *v = 14; return OK; }
API nvmlDeviceGetArchitecture(Dev d, u32 *v) { DEV; *v = d->arch; return OK; }
API nvmlDeviceGetCudaComputeCapability(Dev d, int *a, int *b) { DEV; *a = (int)d->ccmaj; *b = (int)d->ccmin; return OK; }
API nvmlDeviceGetComputeMode(Dev d, u32 *v) { DEV; *v = d->mode; return OK; }
API nvmlDeviceGetPersistenceMode(Dev d, u32 *v) { PHYS; *v = 1; return OK; }
/* Since driver 510 what is reserved counts as used in the first form, and the second form tells it apart. */
API nvmlDeviceGetMemoryInfo(Dev d, u64 *m) { DEV; m[0] = d->mem; m[2] = d->used + (atoi(driver) < 510 ? 0 : d->reserved); m[1] = d->mem - m[2]; return OK; }
API nvmlDeviceGetMemoryInfo_v2(Dev d, void *p)
{
    struct { u32 version; u64 total, reserved, free, used; } *m = p;
    DEV;
    if (atoi(driver) < 510) return 13;                          /* FUNCTION_NOT_FOUND */
    if (m->version != (sizeof *m | 2u << 24)) return 25;        /* ARGUMENT_VERSION_MISMATCH */
    m->total = d->mem; m->reserved = d->reserved; m->free = d->mem - d->used - d->reserved; m->used = d->used;
    return OK;
}
API nvmlDeviceGetUtilizationRates(Dev d, u32 *u) { PHYS; if (d->mig) return NOTSUP; u[0] = d->util; u[1] = d->memutil; return OK; }
API nvmlDeviceGetTemperature(Dev d, u32 sensor, u32 *v) { PHYS; *v = d->temp; return OK; }
API nvmlDeviceGetTemperatureV(Dev d, void *p) { struct { u32 version, sensor; int t; } *x = p; PHYS; x->t = (int)d->temp; return OK; }
API nvmlDeviceGetPowerUsage(Dev d, u32 *v) { PHYS; *v = d->power; return OK; }
API nvmlDeviceGetPowerManagementLimit(Dev d, u32 *v) { PHYS; *v = d->limit; return OK; }
API nvmlDeviceGetEnforcedPowerLimit(Dev d, u32 *v) { PHYS; *v = d->limit; return OK; }
API nvmlDeviceGetFanSpeed(Dev d, u32 *v) { PHYS; return NOTSUP; }
API nvmlDeviceGetPerformanceState(Dev d, u32 *v) { PHYS; *v = d->util ? 0 : 8; return OK; }
API nvmlDeviceGetClockInfo(Dev d, u32 type, u32 *v) { PHYS; *v = d->util ? 1410 : 210; return OK; }
API nvmlDeviceGetMaxClockInfo(Dev d, u32 type, u32 *v) { PHYS; *v = 1410; return OK; }
API nvmlDeviceGetEccMode(Dev d, u32 *a, u32 *b) { PHYS; *a = *b = 1; return OK; }
API nvmlDeviceGetTotalEccErrors(Dev d, u32 type, u32 counter, u64 *v) { PHYS; *v = 0; return OK; }
API nvmlDeviceGetCurrPcieLinkGeneration(Dev d, u32 *v) { PHYS; *v = d->gen; return OK; }
API nvmlDeviceGetMaxPcieLinkGeneration(Dev d, u32 *v) { PHYS; *v = 4; return OK; }
API nvmlDeviceGetCurrPcieLinkWidth(Dev d, u32 *v) { PHYS; *v = d->lanes; return OK; }
API nvmlDeviceGetMaxPcieLinkWidth(Dev d, u32 *v) { PHYS; *v = 16; return OK; }
API nvmlDeviceGetTotalEnergyConsumption(Dev d, u64 *v) { PHYS; if (!d->energy) return NOTSUP; *v = d->energy; return OK; }
API nvmlDeviceGetCurrentClocksThrottleReasons(Dev d, u64 *v) { PHYS; *v = d->reasons ? d->reasons : d->util ? 0 : 1; return OK; }
API nvmlDeviceGetViolationStatus(Dev d, int policy, struct { u64 reference, violation; } *v)
{ PHYS; if (policy != 1 || !d->heat) return NOTSUP; v->reference = 0; v->violation = (u64)d->heat * 1000000; return OK; }
API nvmlDeviceGetCurrentClocksEventReasons(Dev d, u64 *v) { return nvmlDeviceGetCurrentClocksThrottleReasons(d, v); }
API nvmlDeviceGetNumaNodeId(Dev d, u32 *v) { PHYS; *v = d->numa; return OK; }
typedef struct { char legacy[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } Pci;
static int pci(Dev d, Pci *p, int with_id)
{
    PHYS;
    u32 dom = 0, bus = 0, dev = 0;
    sscanf(d->bus, "%x:%x:%x", &dom, &bus, &dev);
    memset(p, 0, with_id ? sizeof *p : sizeof *p - 32);
    snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.0", dom & 0xffff, bus & 0xff, dev & 0xff);
    p->domain = dom; p->bus = bus; p->device = dev; p->pciDeviceId = 0x233010DE; p->pciSubSystemId = 0x16C110DE;
    if (with_id) snprintf(p->busId, sizeof p->busId, "%08X:%02X:%02X.0", dom, bus & 0xff, dev & 0xff);
    return OK;
}
API nvmlDeviceGetPciInfo_v3(Dev d, Pci *p) { return pci(d, p, 1); }
API nvmlDeviceGetPciInfo_v2(Dev d, Pci *p) { return pci(d, p, 0); }
API nvmlDeviceGetPciInfo(Dev d, Pci *p) { return pci(d, p, 0); }

/* ---- processes: v1 has 16-byte records, v2 and v3 24-byte ones */
static int running(Dev d, u32 *n, void *buf, int v1, u32 graphics)
{
    DEV;
    u32 have = 0, room = *n;
    for (int i = 0; i < nproc; i++) {
        if (procs[i].graphics != graphics || (d->parent && procs[i].gi != d->gi)) continue;
        if (&gpus[procs[i].gpu < MAXG && procs[i].gpu >= 0 ? procs[i].gpu : 0] != (d->parent ? d->parent : d)) continue;
        if (buf && have < room) {
            if (v1) { struct { u32 pid; u64 mem; } *r = buf; r[have].pid = procs[i].pid; r[have].mem = procs[i].mem; }
            else { struct { u32 pid; u64 mem; u32 gi, ci; } *r = buf; r[have].pid = procs[i].pid; r[have].mem = procs[i].mem; r[have].gi = procs[i].gi; r[have].ci = procs[i].gi == 0xFFFFFFFF ? procs[i].gi : 0; }
        }
        have++;
    }
    *n = have;
    return have > room || (have && !buf) ? TOOSMALL : OK;
}
API nvmlDeviceGetComputeRunningProcesses_v3(Dev d, u32 *n, void *b) { return running(d, n, b, 0, 0); }
API nvmlDeviceGetComputeRunningProcesses_v2(Dev d, u32 *n, void *b) { return running(d, n, b, 0, 0); }
API nvmlDeviceGetComputeRunningProcesses(Dev d, u32 *n, void *b) { return running(d, n, b, 1, 0); }
static int none(Dev d, u32 *n) { DEV; *n = 0; return OK; }
API nvmlDeviceGetGraphicsRunningProcesses_v3(Dev d, u32 *n, void *b) { return running(d, n, b, 0, 1); }
API nvmlDeviceGetGraphicsRunningProcesses_v2(Dev d, u32 *n, void *b) { return running(d, n, b, 0, 1); }
API nvmlDeviceGetGraphicsRunningProcesses(Dev d, u32 *n, void *b) { return running(d, n, b, 1, 1); }
API nvmlDeviceGetMPSComputeRunningProcesses_v3(Dev d, u32 *n, void *b) { return none(d, n); }

/* ---- MIG */
API nvmlDeviceGetMigMode(Dev d, u32 *cur, u32 *pend) { PHYS; if (d->ccmaj < 8) return NOTSUP; *cur = *pend = d->mig; return OK; }
API nvmlDeviceIsMigDeviceHandle(Dev d, u32 *v) { DEV; *v = d->parent != NULL; return OK; }
API nvmlDeviceGetMaxMigDeviceCount(Dev d, u32 *v) { PHYS; *v = d->ccmaj < 8 ? 0 : 7; return OK; }
API nvmlDeviceGetMigDeviceHandleByIndex(Dev d, u32 i, Dev *m)
{
    PHYS;
    if (!d->mig) return NOTFOUND;
    for (int k = 0; k < nmig; k++) if (migs[k].parent == d && migs[k].index == i) { *m = &migs[k]; return OK; }
    return NOTFOUND;
}
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Dev d, Dev *p) { DEV; if (!d->parent) return INVALID; *p = d->parent; return OK; }
API nvmlDeviceGetGpuInstanceId(Dev d, u32 *v) { DEV; if (!d->parent) return NOTSUP; *v = d->gi; return OK; }
API nvmlDeviceGetComputeInstanceId(Dev d, u32 *v) { DEV; if (!d->parent) return NOTSUP; *v = d->ci; return OK; }

/* ---- topology */
API nvmlDeviceGetTopologyCommonAncestor(Dev d, Dev e, u32 *v)
{
    PHYS;
    int r = device(e);
    if (r) return r;
    *v = d == e ? 0 : (u32)topo[d->index][e->index];
    return OK;
}
API nvmlDeviceGetTopologyNearestGpus(Dev d, u32 level, u32 *n, Dev *out)
{
    PHYS;
    u32 have = 0, room = *n;
    for (int i = 0; i < ngpu; i++)
        if (&gpus[i] != d && (u32)topo[d->index][i] == level) { if (out && have < room) out[have] = &gpus[i]; have++; }
    *n = have;
    return OK;
}
API nvmlDeviceGetP2PStatus(Dev d, Dev e, u32 which, u32 *v) { PHYS; int r = device(e); if (r) return r; *v = links[d->index][e->index] ? 0 : 2; return OK; }
static int link_peer(Dev d, u32 link)
{
    u32 k = 0;
    for (int j = 0; j < ngpu; j++) { k += (u32)links[d->index][j]; if (link < k) return j; }
    return -1;
}
API nvmlDeviceGetNvLinkState(Dev d, u32 link, u32 *v)
{
    PHYS;
    u32 any = 0;
    for (int j = 0; j < ngpu; j++) any += (u32)links[d->index][j];
    if (!any || link >= 18) return any ? INVALID : NOTSUP;
    *v = link + d->links_down < any;
    return OK;
}
/* The fields that nvml.h calls NVML_FI_DEV_NVLINK_GET_SPEED (164) and _STATE (165), of the link that is their scope. */
typedef struct { u32 id, scope; long long at, took; u32 type, ret; union { u32 ui; u64 ull; } value; } Field;
API nvmlDeviceGetFieldValues(Dev d, int n, Field *f)
{
    PHYS;
    if (!d->fields) return 13;                                  /* FUNCTION_NOT_FOUND */
    for (int i = 0; i < n; i++) {
        u32 up = 0;
        int r = nvmlDeviceGetNvLinkState(d, f[i].scope, &up);
        f[i].type = 1;                                          /* unsigned int */
        f[i].ret = r ? (u32)r : f[i].id != 164 && f[i].id != 165 ? NOTSUP : OK;
        f[i].value.ui = f[i].id == 165 ? up : !up ? 0 : d->slow_link && !f[i].scope ? d->slow_link : 26562;
    }
    return OK;
}
API nvmlDeviceGetNvLinkVersion(Dev d, u32 link, u32 *v) { PHYS; if (link_peer(d, link) < 0) return NOTSUP; *v = 4; return OK; }
API nvmlDeviceGetNvLinkRemotePciInfo_v2(Dev d, u32 link, Pci *p) { PHYS; int j = link_peer(d, link); return j < 0 ? NOTSUP : pci(&gpus[j], p, 1); }
API nvmlDeviceGetNvLinkRemotePciInfo(Dev d, u32 link, Pci *p) { PHYS; int j = link_peer(d, link); return j < 0 ? NOTSUP : pci(&gpus[j], p, 0); }
API nvmlDeviceGetCpuAffinity(Dev d, u32 n, unsigned long *set) { PHYS; memset(set, 0, n * sizeof *set); if (n) set[0] = 0xFFUL << (8 * (d->numa & 7)); return OK; }
API nvmlDeviceGetMemoryAffinity(Dev d, u32 n, unsigned long *set, u32 scope) { PHYS; memset(set, 0, n * sizeof *set); if (n) set[0] = 1UL << d->numa; return OK; }

/* ---- events: Xids */
typedef struct { int read, of[MAXG]; } Set;
API nvmlEventSetCreate(Set **s) { SYS; *s = calloc(1, sizeof **s); (*s)->read = nxid; return OK; }
API nvmlEventSetFree(Set *s) { SYS; free(s); return OK; }
API nvmlDeviceGetSupportedEventTypes(Dev d, u64 *v) { PHYS; *v = 8; return OK; }
API nvmlDeviceRegisterEvents(Dev d, u64 types, Set *s) { PHYS; if (types != 8) return NOTSUP; s->of[d - gpus] = 1; return OK; }
API nvmlEventSetWait_v2(Set *s, struct { Dev d; u64 type, data; u32 gi, ci; } *e, u32 ms)
{
    SYS;
    while (s->read < nxid) {
        int i = s->read++;
        if (xids[i].gpu < 0 || xids[i].gpu >= ngpu || !s->of[xids[i].gpu]) continue;
        e->d = &gpus[xids[i].gpu]; e->type = 8; e->data = xids[i].number; e->gi = xids[i].gi; e->ci = xids[i].ci;
        return OK;
    }
    return 10;                                                  /* TIMEOUT */
}

/* ---- GPM */
typedef struct { double sm, tensor, dram; } Sample;
API nvmlGpmQueryDeviceSupport(Dev d, struct { u32 version, is; } *s) { PHYS; s->is = d->gpm; return OK; }
API nvmlGpmSampleAlloc(Sample **s) { SYS; *s = calloc(1, sizeof **s); return OK; }
API nvmlGpmSampleFree(Sample *s) { SYS; free(s); return OK; }
API nvmlGpmSampleGet(Dev d, Sample *s)
{
    PHYS;
    if (!d->gpm || d->gpm_error) return d->gpm_error ? (int)d->gpm_error : NOTSUP;
    *s = (Sample){ d->sm, d->tensor, d->dram };
    return OK;
}
typedef struct { u32 id, ret; double value; const char *name, *text, *unit; } Metric;
API nvmlGpmMetricsGet(struct { u32 version, n; Sample *one, *other; Metric metrics[]; } *q)
{
    SYS;
    if (q->version != 1 || !q->one || !q->other) return INVALID;
    for (u32 i = 0; i < q->n; i++) {
        Metric *m = &q->metrics[i];
        m->ret = OK;
        if (m->id == 2) m->value = q->other->sm;                /* SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL */
        else if (m->id == 5) m->value = q->other->tensor;
        else if (m->id == 10) m->value = q->other->dram;
        else m->ret = NOTSUP;
    }
    return OK;
}
