// Loads compiled kernels and launches them in whatever CUDA context is current. The driver's library is
// found when it is first needed, so that nothing of CUDA is linked.
#pragma once

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention_launches.h"

namespace blink::tensorrt {

class KernelLauncher {
  public:
    // One a process; kernels stay loaded as long as their context. Throws std::runtime_error.
    static KernelLauncher& instance() {
        static KernelLauncher launcher;
        return launcher;
    }

    // Those that the current context does not have yet; waits for resident kernels.
    void load(const std::vector<Kernel>& kernels) {
        for (const Kernel& kernel : kernels) function(kernel);
    }

    // Multiprocessors of the current device that an engine may fill: the scheduler resides on one.
    int processors() {
        int device = 0, count = 0;
        call("cuCtxGetDevice", ctx_get_device_(&device));
        call("cuDeviceGetAttribute", device_get_attribute_(&count, MULTIPROCESSOR_COUNT, device));
        return std::max(1, count - 1);
    }

    void launch(const Launch& launch, void* stream) {
        std::vector<uint64_t> values = launch.arguments;
        std::vector<void*> parameters;
        for (uint64_t& value : values) parameters.push_back(&value);
        const Kernel& kernel = *launch.kernel;
        call("cuLaunchKernel",
             launch_kernel_(function(kernel), launch.grid[0], launch.grid[1], launch.grid[2], kernel.warps * WARP, 1, 1,
                            kernel.shared_bytes, stream, parameters.data(), nullptr));
    }

  private:
    static constexpr int MULTIPROCESSOR_COUNT = 16;           // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    static constexpr int MAX_DYNAMIC_SHARED_BYTES = 8;        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    static constexpr uint32_t PLAIN_SHARED_BYTES = 48 << 10;  // that a kernel may have without asking for more
    static constexpr unsigned WARP = 32;

    KernelLauncher() {
        library_ = dlopen("libcuda.so.1", RTLD_NOW);
        if (library_ == nullptr) throw std::runtime_error("libcuda.so.1 cannot be loaded");
        find(get_error_name_, "cuGetErrorName");
        find(ctx_get_current_, "cuCtxGetCurrent");
        find(ctx_get_id_, "cuCtxGetId");
        find(ctx_get_device_, "cuCtxGetDevice");
        find(device_get_attribute_, "cuDeviceGetAttribute");
        find(module_load_data_, "cuModuleLoadData");
        find(module_get_function_, "cuModuleGetFunction");
        find(func_load_, "cuFuncLoad");
        find(func_set_attribute_, "cuFuncSetAttribute");
        find(launch_kernel_, "cuLaunchKernel");
    }

    template <class Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        if (function == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    }

    void call(const char* name, int status) {
        if (status == 0) return;
        const char* told = nullptr;
        get_error_name_(status, &told);
        throw std::runtime_error(std::string(name) + ": " + (told != nullptr ? told : "unknown error"));
    }

    void* function(const Kernel& kernel) {
        void* context = nullptr;
        unsigned long long id = 0;
        call("cuCtxGetCurrent", ctx_get_current_(&context));
        call("cuCtxGetId", ctx_get_id_(context, &id));
        const std::lock_guard lock(mutex_);
        void*& function = functions_[{id, kernel.code}];
        if (function == nullptr) function = loaded(kernel);
        return function;
    }

    void* loaded(const Kernel& kernel) {
        void *module = nullptr, *function = nullptr;
        call("cuModuleLoadData", module_load_data_(&module, kernel.code.data()));
        call("cuModuleGetFunction", module_get_function_(&function, module, kernel.name.c_str()));
        call("cuFuncLoad", func_load_(function));
        if (kernel.shared_bytes > PLAIN_SHARED_BYTES) {
            call("cuFuncSetAttribute",
                 func_set_attribute_(function, MAX_DYNAMIC_SHARED_BYTES, int(kernel.shared_bytes)));
        }
        return function;
    }

    void* library_;
    int (*get_error_name_)(int, const char**);
    int (*ctx_get_current_)(void**);
    int (*ctx_get_id_)(void*, unsigned long long*);
    int (*ctx_get_device_)(int*);
    int (*device_get_attribute_)(int*, int, int);
    int (*module_load_data_)(void**, const void*);
    int (*module_get_function_)(void**, void*, const char*);
    int (*func_load_)(void*);
    int (*func_set_attribute_)(void*, int, int);
    int (*launch_kernel_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                          void**);
    std::mutex mutex_;
    std::map<std::pair<unsigned long long, std::string>, void*> functions_;  // by context and code
};

}  // namespace blink::tensorrt
