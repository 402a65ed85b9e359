// A CUDA driver that says what is asked of it, on standard output: one GPU with 65 multiprocessors.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace {
std::string names[64];  // of kernels; a function is a place in it, from 1 on
int loaded = 0;
}  // namespace

extern "C" {

int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_THE_TEST", 0; }
int cuCtxGetCurrent(void** context) { return *context = names, 0; }
int cuCtxGetId(void*, unsigned long long* id) { return *id = 7, 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) { return *value = 65, attribute == 16 ? 0 : 1; }

int cuModuleLoadData(void** module, const void* code) {
    *module = const_cast<void*>(code);
    return std::memcmp(code, "bad", 3) == 0 ? 200 : 0;
}

int cuModuleGetFunction(void** function, void*, const char* name) {
    names[++loaded] = name;
    std::printf("load %s\n", name);
    *function = reinterpret_cast<void*>(uintptr_t(loaded));
    return 0;
}

int cuFuncLoad(void*) { return 0; }

int cuFuncSetAttribute(void* function, int attribute, int value) {
    std::printf("attribute %s %d %d\n", names[uintptr_t(function)].c_str(), attribute, value);
    return 0;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned shared, void* stream, void** arguments, void**) {
    std::printf("launch %s %u %u %u threads %u shared %u stream %lu first %lu\n", names[uintptr_t(function)].c_str(), x,
                y, z, threads, shared, uintptr_t(stream), *static_cast<uint64_t*>(arguments[0]));
    return 0;
}
}
